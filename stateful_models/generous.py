"""Our manager for a policy that declares that it may give more victims than it is asked for."""

from __future__ import annotations

from typing_extensions import override

from kvoffload.cpu.manager import CPUOffloadingManager
from kvoffload.cpu.policy_guard import PolicyGuard


class GenerousGuard(PolicyGuard):
    """Believes a policy that gives more victims than were asked for, as it has declared."""

    @override
    def are_right(self, victims: int, needed: int) -> bool:
        return victims >= needed


class GenerousManager(CPUOffloadingManager):
    """Takes what its policy gives beyond what was asked for; those slots are free."""

    guard_cls: type[PolicyGuard] = GenerousGuard
