"""Independent models: short, slow, and easy to check by reading. They import no implementation."""

from stateful_models.models.arc import ARCModel
from stateful_models.models.comparison import Prediction, Raises, difference
from stateful_models.models.lru import LRUModel
from stateful_models.models.manager import ManagerModel
from stateful_models.models.oracle import PolicyOracle
from stateful_models.models.policy import PolicyModel, prefix_order
from stateful_models.models.s3fifo import S3FIFOModel
from stateful_models.models.sieve import SIEVEModel
from stateful_models.models.slru import SLRUModel
from stateful_models.models.wtinylfu import WTinyLFUModel

__all__ = [
    "ARCModel",
    "LRUModel",
    "ManagerModel",
    "PolicyModel",
    "PolicyOracle",
    "Prediction",
    "Raises",
    "S3FIFOModel",
    "SIEVEModel",
    "SLRUModel",
    "WTinyLFUModel",
    "difference",
    "prefix_order",
]
