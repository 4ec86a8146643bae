"""What `nox -s pages` prints, and its exit status."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console
from typer.testing import CliRunner

from spec_tests.pages import __main__ as session
from spec_tests.pages.work import GridPart, PairsPart, Part, Tally
from stateful_models.contract import Kind
from stateful_models.pages import PageFinding, Spread, drawn_pairs


def few_grid_parts(*, tenth: int | None, seed: int) -> list[GridPart]:
    return [GridPart([Spread(1), Spread(1, tp_size=3)], tenth, seed)]


def few_pairs_parts(*, tenth: int | None, seed: int) -> list[PairsPart]:
    return [PairsPart(drawn_pairs(30, seed=seed)[:20])]


def found(size: int) -> PageFinding:
    return PageFinding("MAP-3", Kind.SAFETY, "a message", f"case {size}", size=size)


def test_it_counts_what_it_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "grid_parts", few_grid_parts)
    monkeypatch.setattr(session, "pairs_parts", few_pairs_parts)
    done = CliRunner().invoke(session.app, ["--jobs", "1"])
    assert done.exit_code == 0, done.output
    counts = [line.split()[0] for line in done.output.splitlines() if line.strip()]
    # Of 65 layers, with and without padding, 3 ranks take those with 1, 3, 6, ... heads.
    legal = 65 * 2 + (6 * 4 + 1) * 2
    assert counts[:6] == [str(legal), str(legal), str(260 - legal), "1,120", "20", "0"]


def test_it_shows_what_it_found() -> None:
    tally = Tally(legal=3)
    for size in (5, 2, 9):
        tally.findings.add(
            [PageFinding("MAP-3", Kind.SAFETY, "a message", f"case {size}", size=size)]
        )
    stream = io.StringIO()
    session.show(Console(file=stream, width=200), tally, 1.0)
    assert "3  findings" in stream.getvalue()
    assert "MAP-3: a message" in stream.getvalue()
    assert "  case 2\n  found 3 times" in stream.getvalue()


def test_it_fails_when_something_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tally = Tally()
    tally.findings.add([found(1)])

    def try_nothing(parts: Sequence[Part], jobs: int, console: Console) -> Tally:
        return tally

    monkeypatch.setattr(session, "grid_parts", few_grid_parts)
    monkeypatch.setattr(session, "pairs_parts", few_pairs_parts)
    monkeypatch.setattr(session, "try_parts", try_nothing)
    assert CliRunner().invoke(session.app, []).exit_code == 1
