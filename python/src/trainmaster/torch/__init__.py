"""For PyTorch: `DataLoader` and `ParameterServerOptimizer`."""

from __future__ import annotations

from ._dataloader import DataLoader
from ._optimizer import ParameterServerOptimizer

__all__ = ["DataLoader", "ParameterServerOptimizer"]
