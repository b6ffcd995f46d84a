"""The reader of a loader: addresses of records in, data out. It runs in the process of the loader, or in a worker process."""

from __future__ import annotations

import collections
import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from . import errors
from ._agent import Chunks
from ._link import Records
from .account import Run

Decode = Callable[[memoryview], Any]
Fail = Callable[..., None]


class _Skip:
    """The type of SKIP."""

    def __repr__(self) -> str:
        return "trainmaster.SKIP"

    def __reduce__(self) -> str:
        return "SKIP"


SKIP = _Skip()
"""Return value of `decode` for a record that is consumed without being in a batch, and of `decode_batch` for all its records."""


class Failure:
    """A task that failed in a reader: number, text for the master, text for the log."""

    def __init__(self, task: int, text: str, trace: str) -> None:
        """Make it."""
        self.task, self.text, self.trace = task, text, trace


Result = tuple[tuple[Failure, ...], int, Any]
"""What a reader has made of a batch: failures, number of samples, data. The number is -1 at the end of the job."""

END: Result = (), -1, None


class Reader:
    """Turns addresses into data, in any process. It can be pickled if its functions can be."""

    def __init__(
        self, path: str, decode: Decode | None, decode_batch: Callable[[list[memoryview]], Any] | None, collate: Callable[[list[Any]], Any], keep: int
    ) -> None:
        """Make a reader. `keep` is the number of chunks that stay mapped."""
        self.decode, self.decode_batch, self.collate, self.keep = decode, decode_batch, collate, keep
        self.chunks = Chunks(path)
        self._pid = 0
        self._mapped: collections.OrderedDict[tuple[str, int], Records] = collections.OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the mapped chunks out."""
        return {**self.__dict__, "_pid": 0, "_mapped": collections.OrderedDict()}

    def records(self, run: Run) -> list[memoryview]:
        """Return the records of a run."""
        if self._pid != os.getpid():
            self._pid, self._mapped = os.getpid(), collections.OrderedDict()
        key = run.chunk["path"], run.chunk["offset"]
        mapped = self._mapped.get(key)
        if mapped is None:
            mapped = self._mapped[key] = self.chunks.read(run.chunk, run.following)
            while len(self._mapped) > self.keep:
                self._mapped.popitem(last=False)
        else:
            self._mapped.move_to_end(key)
        return mapped.take(run.records)

    def read(self, runs: Sequence[Run]) -> Result:
        """Return failures, the number of samples, and the data of the records that remain."""
        failures: list[Failure] = []
        bad: set[int] = set()

        def fail(task: int, text: str, trace: str = "") -> None:
            bad.add(task)
            failures.append(Failure(task, text, trace))

        found: list[tuple[Run, list[memoryview]]] = []
        for run in runs:
            if run.task not in bad:
                try:
                    found.append((run, self.records(run)))
                except (errors.AgentLostError, errors.ResourceError):
                    raise
                except errors.Error as e:
                    fail(run.task, str(e))
        if self.decode_batch is None:
            items = self._decode(found, bad, fail)
            return tuple(failures), len(items), self.collate(items) if items else None
        good = self._good(found, bad)
        if not good:
            return tuple(failures), 0, None
        try:
            made = self.decode_batch(good)
        except Exception:
            if not self._blame(found, bad, fail):
                raise  # it fails only for all of them together: no task is to blame
            good = self._good(found, bad)
            made = self.decode_batch(good) if good else SKIP
        return (tuple(failures), 0, None) if made is SKIP else (tuple(failures), len(good), made)

    def _decode(self, found: list[tuple[Run, list[memoryview]]], bad: set[int], fail: Fail) -> list[Any]:
        decode: Decode = bytes if self.decode is None else self.decode
        made: list[tuple[int, list[Any]]] = []
        for run, records in found:
            if run.task in bad:
                continue
            items: list[Any] = []
            made.append((run.task, items))
            try:
                for record in records:
                    items.append(decode(record))  # noqa: PERF401 its length is the number of the record that fails
            except Exception as e:  # noqa: BLE001 it is the user's function
                where = f"{run.chunk['path']}: chunk at {run.chunk['offset']}, record {run.records[len(items)]}"
                fail(run.task, f"{where}: decode: {type(e).__name__}: {e}", traceback.format_exc())
        return [item for task, items in made if task not in bad for item in items if item is not SKIP]

    def _good(self, found: list[tuple[Run, list[memoryview]]], bad: set[int]) -> list[memoryview]:
        return [r for run, records in found if run.task not in bad for r in records]

    def _blame(self, found: list[tuple[Run, list[memoryview]]], bad: set[int], fail: Fail) -> bool:
        """Find the tasks for whose records alone decode_batch fails."""
        assert self.decode_batch is not None
        before = len(bad)
        for run, records in found:
            if run.task not in bad:
                try:
                    self.decode_batch(records)
                except Exception as e:  # noqa: BLE001 it is the user's function
                    where = f"{run.chunk['path']}: chunk at {run.chunk['offset']}, records {run.records[0]} to {run.records[-1]}"
                    fail(run.task, f"{where}: decode_batch: {type(e).__name__}: {e}", traceback.format_exc())
        return len(bad) > before


def stack(items: list[Any]) -> Any:
    """Stack samples: arrays and numbers to an array, tuples and dicts by their parts."""
    import numpy as np  # noqa: PLC0415 it is an extra

    first = items[0]
    forms = sorted({_form(item) for item in items})
    if len(forms) > 1:
        raise ValueError(f"samples: expected one form in a batch, found {forms[0]} and {forms[1]}: let decode return one form, or give collate=")
    if isinstance(first, tuple):
        return tuple(stack([item[i] for item in items]) for i in range(len(first)))
    if isinstance(first, dict):
        return {key: stack([item[key] for item in items]) for key in first}
    if isinstance(first, (str, bytes)):
        return items
    arrays = [np.asarray(item) for item in items]
    if odd := next((type(item).__name__ for item, a in zip(items, arrays) if a.dtype == object), None):
        raise TypeError(
            f"samples: expected numbers, arrays, text, or tuples and dicts of them, found {odd}: return tm.SKIP to leave a record out, "
            "or give collate= for other types"
        )
    try:
        return np.stack(arrays)
    except ValueError:
        other = next((a.shape for a in arrays if a.shape != arrays[0].shape), None)
        if other is None:
            raise
        raise ValueError(f"samples: expected one shape in a batch, found {arrays[0].shape} and {other}: pad them, or give collate=") from None


def _form(item: Any) -> str:
    """Describe what all samples of a batch have in common."""
    if isinstance(item, tuple):
        return f"a tuple of {len(item)}"
    if isinstance(item, dict):
        return f"a dict with {sorted(map(str, item))}"
    if isinstance(item, (str, bytes)):
        return type(item).__name__
    return "numbers or arrays"
