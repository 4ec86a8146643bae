"""Machines of the policies that name a model in their capabilities: each against its own."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import rule

from kvoffload import CachePolicy
from stateful_models.capabilities import BUILT_IN
from stateful_models.drivers import registered
from stateful_models.machines.policy import PolicyMachine
from stateful_models.machines.universe import KEYS, request_slots
from stateful_models.models import PolicyModel, S3FIFOModel, SIEVEModel, SLRUModel, WTinyLFUModel
from stateful_models.models.uses import UseModel
from stateful_models.operations import CompleteStore, PrepareStore, Touch


class ModelledMachine(PolicyMachine[CachePolicy]):
    """The registered policy `policy`, each answer held against the model that it names."""

    policy: ClassVar[str] = "sieve"
    SITUATIONS: ClassVar[tuple[str, ...]] = (*PolicyMachine.SITUATIONS, *SIEVEModel.SITUATIONS)

    def make_policy(self, capacity: int) -> CachePolicy:
        return registered(self.policy).build(capacity)

    def make_model(self, capacity: int) -> PolicyModel | None:
        model = BUILT_IN[self.policy].model
        return None if model is None else model(capacity)

    def teardown(self) -> None:
        """Note what the model came to as well."""
        if not self.over:
            super().teardown()
            model = self.model
            for situation in model.reached if isinstance(model, UseModel) else ():
                self.reach.note(situation)


class SIEVEPolicyMachine(ModelledMachine):
    """SIEVE against its model."""

    @rule(slot=request_slots)
    def fail_at_the_hand(self, slot: int) -> None:
        """The store of the key that the hand is at fails.

        Where that is not being stored, others are begun until the hand has come to one of them.
        """
        for key in [key for key in KEYS if key not in self.host.ref_cnt]:
            hand = self.model.hand if isinstance(self.model, SIEVEModel) else None
            if hand is not None and hand in self.host.pending:
                self.play(CompleteStore(self.requests[0], (hand,), success=False))
                return
            self.play(PrepareStore(self._running(slot), (key,)))


class SIEVETailPolicyMachine(SIEVEPolicyMachine):
    """SIEVE, the tail first, against its model."""

    policy: ClassVar[str] = "sieve-tail"


class S3FIFOPolicyMachine(ModelledMachine):
    """S3-FIFO against its model."""

    policy: ClassVar[str] = "s3fifo"
    SITUATIONS: ClassVar[tuple[str, ...]] = (*PolicyMachine.SITUATIONS, *S3FIFOModel.SITUATIONS)

    @rule(slot=request_slots, first=st.integers(0, len(KEYS) - 1))
    def use_all_often(self, slot: int, first: int) -> None:
        """All that is there is used twice, so that what leaves small goes over to main."""
        for _ in range(2):
            self.play(Touch(self._running(slot), tuple(self.host.ref_cnt)))
        self._store(slot, first, 1)


class S3FIFOTailPolicyMachine(S3FIFOPolicyMachine):
    """S3-FIFO, the tail first, against its model."""

    policy: ClassVar[str] = "s3fifo-tail"


class WTinyLFUPolicyMachine(ModelledMachine):
    """W-TinyLFU against its model."""

    policy: ClassVar[str] = "wtinylfu"
    SITUATIONS: ClassVar[tuple[str, ...]] = (*PolicyMachine.SITUATIONS, *WTinyLFUModel.SITUATIONS)


class WTinyLFUTailPolicyMachine(WTinyLFUPolicyMachine):
    """W-TinyLFU, the tail first, against its model."""

    policy: ClassVar[str] = "wtinylfu-tail"


class SLRUPolicyMachine(ModelledMachine):
    """Segmented LRU against its model."""

    policy: ClassVar[str] = "slru"
    SITUATIONS: ClassVar[tuple[str, ...]] = (*PolicyMachine.SITUATIONS, *SLRUModel.SITUATIONS)


class SLRUTailPolicyMachine(SLRUPolicyMachine):
    """Segmented LRU, the tail first, against its model."""

    policy: ClassVar[str] = "slru-tail"


MODELLED_MACHINES: tuple[type[ModelledMachine], ...] = (
    SIEVEPolicyMachine,
    SIEVETailPolicyMachine,
    S3FIFOPolicyMachine,
    S3FIFOTailPolicyMachine,
    WTinyLFUPolicyMachine,
    WTinyLFUTailPolicyMachine,
    SLRUPolicyMachine,
    SLRUTailPolicyMachine,
)
"""One for each policy that names a model."""
