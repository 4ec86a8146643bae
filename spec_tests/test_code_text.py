"""Tests as text: they mean what they were written for, on lines that are not too long."""

import ast
import math

import pytest

from stateful_models import operations as op
from stateful_models.checking import keys
from stateful_models.trial.code_text import (
    WIDTH,
    call_text,
    expression,
    import_lines,
    laid_out,
    packed,
)

(A,) = keys("a")
HINTS: dict[str, object] = {
    "plain": "word",
    "quotes": 'it\'s "so"\\',
    "odd": "\n\0\u2028\U0001f600\ud800",
    "long": "ab" * 200,
    "odder": "\U0001f600,(x" * 60,
    "bytes": {"b": b"(]'\"" * 60},
    "nines": "9" * 5_000,
    "huge": 10**309,
    "less": -(10**309),
    "hugest": 7**2_000,
    "deep": [{"x": [None, 1.5, -0.0, True, ("y",)]}] * 8,
    "a name that is so long that it does not fit on a line beside its value, whatever that is": "v",
    "empty": [{}, [], ""],
    "set": {1, 2},
}


@pytest.mark.parametrize("name", HINTS)
def test_a_value_can_be_read_again(name: str) -> None:
    value = HINTS[name]
    for text in (expression(value), "\n".join(laid_out(expression(value), 0))):
        assert repr(eval(text)) == repr(value)
        assert text.isascii()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_of_python_is_written_by_its_name(value: float) -> None:
    assert expression([value]) == f'[float("{value}")]'


def test_what_a_reader_would_have_to_count_is_short() -> None:
    assert expression(["9" * 5_000, 10**309, -(10**309)]) == '["9" * 5000, 10**309, -10**309]'


def test_a_call_is_laid_out_on_lines_that_fit() -> None:
    hints = {name: value for name, value in HINTS.items() if name != "hugest"}
    call = call_text(op.NewRequest("r1", hints), {})
    lines = laid_out(f"{call},", 8)
    assert len(lines) > 10
    assert max(map(len, lines)) <= WIDTH
    text = "\n".join(lines).strip().removesuffix(",")
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(call))
    assert lines[0] == "        op.NewRequest("
    assert lines[-1] == "        ),"


def test_what_fits_is_left_alone() -> None:
    text = "f(" + "x" * (WIDTH - 7) + ")"
    assert laid_out(text, 4) == [f"    {text}"]
    assert laid_out(text, 5) == ["     f(", f"         {'x' * (WIDTH - 7)},", "     )"]
    # Nothing in it can be cut.
    assert laid_out("x" * 200, 4) == [f"    {'x' * 200}"]


def test_parts_are_packed_and_a_long_one_stands_alone() -> None:
    long = f'f("{"x" * 120}"),'
    lines = packed(["a,", "b,", long, "c,", "d,"], 8)
    assert lines[0] == "        a, b,"
    assert lines[-1] == "        c, d,"
    assert packed([f"{'y' * 50},"] * 2, 8) == [f"        {'y' * 50},"] * 2


def test_names_are_imported_a_line_each_where_they_do_not_fit() -> None:
    assert import_lines("m", ["b", "A"]) == ["from m import A, b"]
    names = [f"a_rather_long_name_{n}" for n in range(6)]
    assert import_lines("m", names) == [
        "from m import (",
        *(f"    {name}," for name in names),
        ")",
    ]


def test_an_operation_has_its_keys_by_name_and_no_defaults() -> None:
    store = op.CompleteStore("r1", (A,), attempt=2)
    assert call_text(store, {A: "a"}) == 'op.CompleteStore("r1", (a,), attempt=2)'
    assert call_text(op.PrepareLoad("r1", (A,), internal=True), {A: "a"}) == (
        'op.PrepareLoad("r1", (a,), internal=True)'
    )
