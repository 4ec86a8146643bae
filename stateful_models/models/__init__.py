"""Independent models: short, slow, and easy to check by reading. They import no implementation."""

from stateful_models.models.arc import ARCModel
from stateful_models.models.comparison import Prediction, Raises, difference
from stateful_models.models.lru import LRUModel
from stateful_models.models.manager import ManagerModel
from stateful_models.models.oracle import PolicyOracle
from stateful_models.models.policy import PolicyModel, prefix_order

__all__ = [
    "ARCModel",
    "LRUModel",
    "ManagerModel",
    "PolicyModel",
    "PolicyOracle",
    "Prediction",
    "Raises",
    "difference",
    "prefix_order",
]
