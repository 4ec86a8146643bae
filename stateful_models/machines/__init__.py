"""Hypothesis machines. They need the extra `verify`; nothing else in this package does."""

try:
    from stateful_models.machines.manager import (
        ARCManagerMachine,
        LRUManagerMachine,
        ManagerMachine,
    )
    from stateful_models.machines.pages import PageMachine
    from stateful_models.machines.policy import (
        ARCPolicyMachine,
        LRUPolicyMachine,
        PolicyMachine,
    )
    from stateful_models.machines.system import SystemMachine
    from stateful_models.machines.testing import machine_test
    from stateful_models.machines.universe import ManagerConfig
    from stateful_models.machines.worker import WorkerMachine
except ModuleNotFoundError as _missing:
    if _missing.name != "hypothesis":
        raise
    raise ImportError(
        f"{__name__} needs hypothesis: pip install 'kvoffload[verify]'", name="hypothesis"
    ) from None

__all__ = [
    "ARCManagerMachine",
    "ARCPolicyMachine",
    "LRUManagerMachine",
    "LRUPolicyMachine",
    "ManagerConfig",
    "ManagerMachine",
    "PageMachine",
    "PolicyMachine",
    "SystemMachine",
    "WorkerMachine",
    "machine_test",
]
