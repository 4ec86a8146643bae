"""Hypothesis machines. They need the extra `verify`; nothing else in this package does."""

from stateful_models.machines.manager import (
    ARCManagerMachine,
    LRUManagerMachine,
    ManagerMachine,
)
from stateful_models.machines.policy import (
    ARCPolicyMachine,
    LRUPolicyMachine,
    PolicyMachine,
)
from stateful_models.machines.universe import ManagerConfig

__all__ = [
    "ARCManagerMachine",
    "ARCPolicyMachine",
    "LRUManagerMachine",
    "LRUPolicyMachine",
    "ManagerConfig",
    "ManagerMachine",
    "PolicyMachine",
]
