"""A whole system in small: a scheduler, a manager, workers of several ranks, and real bytes."""

from stateful_models.system.engine import (
    Engine,
    Job,
    JobKind,
    RefusedError,
    Request,
    WrongBytesError,
)
from stateful_models.system.world import Rank, SystemConfig, World

__all__ = [
    "Engine",
    "Job",
    "JobKind",
    "Rank",
    "RefusedError",
    "Request",
    "SystemConfig",
    "World",
    "WrongBytesError",
]
