"""For PyTorch: `DataLoader`, `Checkpoints`, `ParameterServerOptimizer` and `Embedding`."""

from __future__ import annotations

from ._checkpoints import Checkpoints
from ._dataloader import DataLoader
from ._embedding import Embedding
from ._optimizer import ParameterServerOptimizer

__all__ = ["Checkpoints", "DataLoader", "Embedding", "ParameterServerOptimizer"]
