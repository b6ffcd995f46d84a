"""For PyTorch: `DataLoader`."""

from __future__ import annotations

from ._dataloader import DataLoader

__all__ = ["DataLoader"]
