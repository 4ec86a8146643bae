"""Workers on trial: their transfers on a device that tries every order, and who is to blame."""

from stateful_models.workers.checking import CLAUSES_JUDGED, check_worker
from stateful_models.workers.findings import WorkerBreachError, WorkerFinding
from stateful_models.workers.subject import SCENES, CopyingWorker, MakeWorker, Scene
from stateful_models.workers.trial import WorkerTrial

__all__ = [
    "CLAUSES_JUDGED",
    "SCENES",
    "CopyingWorker",
    "MakeWorker",
    "Scene",
    "WorkerBreachError",
    "WorkerFinding",
    "WorkerTrial",
    "check_worker",
]
