"""The policy's own tests."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from lanes import TwoLanes
from lanes_driver import FastLaneStays, LanesDriver

from stateful_models.checking import check_policy, keys, op, verdict_on
from stateful_models.drivers import Driver
from stateful_models.invariants import Invariant, PolicyBooks
from stateful_models.machines import PolicyMachine, machine_test


class TestLanes(PolicyMachine[TwoLanes]):
    def make_driver(self) -> Driver[TwoLanes]:
        return LanesDriver(TwoLanes)

    def make_invariants(self, capacity: int) -> Sequence[Invariant[PolicyBooks]]:
        return [FastLaneStays()]

    @rule(slot=st.integers(0, 2))
    def look_at_one(self, slot: int) -> None:
        self.play(op.Lookup(self.requests[slot], keys("a")[0]))


test_lanes = machine_test(TestLanes, settings=settings(max_examples=10, stateful_step_count=20))


def test_the_fast_lane_stays() -> None:
    a, b, c = keys("a b c")
    check_policy(
        LanesDriver(TwoLanes),
        2,
        [
            op.NewRequest("fast", {"priority": 1}),
            op.PrepareStore("fast", (a,)),
            op.CompleteStore("fast", (a,)),
            op.PrepareStore("slow", (b,)),
            op.CompleteStore("slow", (b,)),
            op.PrepareStore("slow", (c,)),
        ],
        invariants=[FastLaneStays()],
    )


def test_protected_keys_stay() -> None:
    verdict = verdict_on("lanes:TwoLanes", "POL-2", driver="lanes_driver:LanesDriver")
    assert not verdict.convicts, verdict.seen
