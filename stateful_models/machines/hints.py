"""What the requests of a machine carry: what its driver says, and about as often a wrong one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random
from typing import Final, TypeVar

from hypothesis import strategies as st

from kvoffload import CachePolicy
from stateful_models.drivers import COMMON_HINTS, Driver
from stateful_models.engines.hints import hostile_values, visit, with_hint, without_hint
from stateful_models.engines.runs import Surroundings, run_program
from stateful_models.trial.hint_names import HintNames

P = TypeVar("P", bound=CachePolicy)

_COMMON: Final = COMMON_HINTS[-1] or {}
_seeds: st.SearchStrategy[int] = st.sampled_from(range(2**16))


def names_asked(driver: Driver[P]) -> tuple[str, ...]:
    """The names of hints that a policy asks for in a few requests, which meet every call."""
    names = HintNames()
    surroundings = Surroundings(make_hints=lambda hints: names.record(dict(hints)))
    run_program(driver, visit({}, _COMMON), lambda capacity: (), surroundings=surroundings)
    return tuple(names.asked)


class RequestHints:
    """Draws hints as `usual` has them; every second time some are missing, or hostile.

    Of these names, and those that `usual` gave; where there is none, of what clients commonly send.
    """

    def __init__(
        self, usual: st.SearchStrategy[Mapping[str, object] | None], names: Collection[str]
    ) -> None:
        self._usual = usual
        self._names = names
        self._drawn = 0

    def draw(self, data: st.DataObject, whose: str) -> Mapping[str, object] | None:
        """The hints of a request."""
        usual = data.draw(self._usual, label=f"hints of {whose}")
        # A single draw, since there are many requests; Hypothesis likes to draw the same again, and
        # then it means something else.
        self._drawn += 1
        chance = Random(f"{data.draw(_seeds, label='what is wrong with them')} {self._drawn}")
        if chance.random() < 0.5:
            return usual
        if chance.random() < 0.15:
            return chance.choice((None, {}))
        names = list(dict.fromkeys((*self._names, *(usual or ())))) or list(_COMMON)
        hints: Mapping[str, object] = usual or {}
        for name in names if chance.random() < 0.7 else [chance.choice(names)]:
            if chance.random() < 0.2:
                hints = without_hint(hints, name)
            else:
                hints = with_hint(hints, name, chance.choice(hostile_values()))
        return hints
