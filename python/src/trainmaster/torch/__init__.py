"""For PyTorch: `DataLoader`, `Checkpoints` and `ParameterServerOptimizer`."""

from __future__ import annotations

from ._checkpoints import Checkpoints
from ._dataloader import DataLoader
from ._optimizer import ParameterServerOptimizer

__all__ = ["Checkpoints", "DataLoader", "ParameterServerOptimizer"]
