"""Elastic training with trainmaster: tasks, records and batches of a job, each counted exactly once per pass."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import errors
from ._reader import SKIP
from ._version import VERSION as __version__  # noqa: N811
from .client import Client, Task
from .errors import Error
from .loader import Loader
from .local import Local, local
from .records import read_records, write_records

if TYPE_CHECKING:
    from . import hf, ps, torch

__all__ = [
    "SKIP",
    "Client",
    "Error",
    "Loader",
    "Local",
    "Task",
    "__version__",
    "errors",
    "hf",
    "local",
    "ps",
    "read_records",
    "torch",
    "write_records",
]


def __getattr__(name: str) -> Any:
    if name in {"hf", "ps", "torch"}:  # extras, and slow to import
        try:
            return importlib.import_module("." + name, __name__)
        except ModuleNotFoundError as e:
            if e.name not in {"numpy", "torch"}:
                raise
            text = f"trainmaster.{name}: expected the module {e.name}, found none: pip install 'trainmaster[torch]'"
            raise ModuleNotFoundError(text, name=e.name) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
