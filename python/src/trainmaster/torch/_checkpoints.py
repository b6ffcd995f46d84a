"""Exact resume: a saved model, and the position in the data that belongs to it, in a job of explicit commits."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable
from typing import Any

import torch

from .. import errors
from ..loader import Base

_FORMAT = 1
_KEPT = 2  # files of committed steps


class Checkpoints:
    """Saves a model so that each record is applied exactly once per pass to the model that is loaded, whatever is killed.

    The master must have `--explicit-commit`. Call `restore` before the loop. Each `optimizer.step()` is a step: it must follow each batch
    once. A step is saved every `every` steps, at the end of a pass, and when the master requires it. The order is: temporary file, fsync,
    rename, flush, commit. After a crash between any two of them, `restore` loads the last committed step, and the records after it are
    dispatched again.

    `save(path)` and `load(path)` replace the state of `model` and `optimizer`. One trainer: the ring of a job with several is not supported.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        loader: Base,
        *,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer,
        every: int = 200,
        save: Callable[[str], None] | None = None,
        load: Callable[[str], None] | None = None,
    ) -> None:
        """See the class."""
        if every < 1:
            raise ValueError(f"every: expected at least 1 step, found {every}")
        if (save is None) != (load is None) or (save is None) == (model is None):
            raise ValueError("expected either model, or both save and load")
        if not loader.client.explicit:
            raise errors.InvalidError("checkpoints: expected a job of explicit commits, found another: start its master with --explicit-commit")
        self.directory, self.loader, self.every = pathlib.Path(directory), loader, every
        self._model, self._optimizer, self._save, self._load = model, optimizer, save, load
        self.step = self.committed = 0
        self._is_applied = True
        self._is_restored = False
        optimizer.register_step_post_hook(self._after_step)
        loader.commits = self

    def restore(self) -> int:
        """Load the last committed step, and return its number: 0 for a new model. The data continues after it."""
        client = self.loader.client
        step = client.last_step()
        if step:
            self._read(step)
        client.rollback(step)  # the incarnation of this trainer is the generation: unique and growing
        self.step = self.committed = step
        self._is_applied = self._is_restored = True
        return step

    def commit(self) -> None:
        """Save and commit now. Without a new step since the last commit, finished tasks count with a step of their own."""
        if self.step == self.committed:
            self.step += 1
        client, step = self.loader.client, self.step
        self._write(step)
        client.flushed(step)
        client.commit(step)
        self.committed = step
        for old in sorted(self.directory.glob("step-*.pt"))[:-_KEPT]:
            old.unlink(missing_ok=True)

    # What the loader calls.

    def begin(self) -> None:
        """Note that the loop has a new batch."""
        if not self._is_restored:
            raise errors.InvalidError("checkpoints: expected restore() before the loop, found none: call it")
        self._is_applied = False

    def end(self) -> None:
        """Require that the batch was applied."""
        if not self._is_applied:
            raise errors.InvalidError("checkpoints: expected optimizer.step() once for each batch, found none: accumulate within a batch")

    def _after_step(self, *_: Any) -> None:
        if self._is_applied:
            return  # a step outside of the loop
        self.step += 1
        for task, n in self.loader.account.head.counts().items():
            self.loader.client.applied(task, self.step, n)
        self._is_applied = True
        if self.step % self.every == 0:
            self.commit()

    def _path(self, step: int) -> pathlib.Path:
        return self.directory / f"step-{step:012d}.pt"

    def _write(self, step: int) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self._path(step)
        temporary = path.with_suffix(".tmp")
        if self._save is not None:
            self._save(str(temporary))
        else:
            assert self._model is not None
            state = {"format": _FORMAT, "job": self.loader.client.job_id, "step": step}
            torch.save({**state, "model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}, temporary)
        with contextlib.suppress(IsADirectoryError):
            _sync(temporary)
        os.replace(temporary, path)
        _sync(self.directory)

    def _read(self, step: int) -> None:
        path = self._path(step)
        if not path.exists():
            found = ", ".join(p.name for p in sorted(self.directory.glob("step-*.pt"))) or "no files"
            raise errors.NotFoundError(f"{self.directory}: expected {path.name}, the last committed step of the job, found {found}")
        if self._load is not None:
            self._load(str(path))
            return
        assert self._model is not None
        state = torch.load(path, weights_only=True)
        if (state["format"], state["job"], state["step"]) != (_FORMAT, self.loader.client.job_id, step):
            raise errors.InvalidError(
                f"{path}: expected format {_FORMAT}, step {step} of job {self.loader.client.job_id}, "
                f"found format {state['format']}, step {state['step']} of job {state['job']}: use another directory for each job"
            )
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
