"""The ghost list against a plain list, over any sequence of its calls."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload.errors import InvariantError
from kvoffload.keys import OffloadKey, make_offload_key
from kvoffload.policies import ghosts as ghosts_module
from kvoffload.policies.ghosts import STALE_FLOOR, GhostList

KEYS = [make_offload_key(bytes([i]) * 32, 0) for i in range(4)]
keys = st.sampled_from(KEYS)
batches = st.lists(keys, unique=True, max_size=5)
calls = st.one_of(
    st.tuples(st.just("extend"), batches, st.integers(0, 6)),
    st.tuples(st.just("renew"), keys),
    st.tuples(st.just("renew"), keys),
    st.tuples(st.just("renew"), keys),
    st.tuples(st.just("discard_all"), batches),
    st.tuples(st.just("clear")),
)


@given(st.lists(calls, min_size=20, max_size=60), st.sampled_from([0, 2, STALE_FLOOR]))
def test_it_holds_what_a_list_would(program: list[tuple[object, ...]], floor: int) -> None:
    with mock.patch.object(ghosts_module, "STALE_FLOOR", floor):
        run_beside_a_list(program)


def run_beside_a_list(program: list[tuple[object, ...]]) -> None:
    ghosts = GhostList()
    model: list[OffloadKey] = []
    for call in program:
        match call:
            case ("extend", list(batch), int(bound)):
                new = [key for key in KEYS if key in batch and key not in model]
                ghosts.extend(new, bound)
                model = model + new
                model = model[max(0, len(model) - bound) :]
            case ("renew", bytes(raw)):
                key = OffloadKey(raw)
                if key in model:
                    ghosts.renew(key)
                    model.remove(key)
                    model.append(key)
            case ("discard_all", list(batch)):
                ghosts.discard_all([key for key in KEYS if key in batch])
                model = [key for key in model if key not in batch]
            case _:
                ghosts.clear()
                model = []
        assert list(ghosts) == model
        assert ghosts.keys == set(model)
        ghosts.check()


def test_renewals_do_not_make_it_grow() -> None:
    ghosts = GhostList()
    ghosts.extend(KEYS, 8)
    for i in range(10_000):
        ghosts.renew(KEYS[i % 3])
        assert ghosts.num_entries <= 2 * len(KEYS) + STALE_FLOOR
    assert list(ghosts)[-1] == KEYS[9_999 % 3]


def test_coming_and_going_does_not_make_it_grow() -> None:
    ghosts = GhostList()
    for _ in range(10_000):
        ghosts.extend(KEYS[:2], 8)
        ghosts.discard_all(KEYS[:2])
        assert ghosts.num_entries <= STALE_FLOOR
    assert list(ghosts) == []


def test_check_tells_of_a_key_that_is_not_in_the_queue() -> None:
    ghosts = GhostList()
    ghosts.extend(KEYS[:2], 8)
    ghosts.keys.add(KEYS[3])
    with pytest.raises(InvariantError, match="ghosts"):
        ghosts.check()
