"""Exact resume: a saved model, and the position in the data that belongs to it, in a job of explicit commits."""

from __future__ import annotations

import atexit
import collections
import contextlib
import copy
import json
import logging
import os
import pathlib
import re
import shutil
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .. import errors
from .._check import functions, whole
from ..loader import Loader

log = logging.getLogger("trainmaster")

_FORMAT = 1
_KEPT = 2  # files of committed steps
_LATEST = "latest.json"
_NAME = re.compile(r"step-(\d+)-(\d+)\.(pt|tmp)")  # step and generation of its writer
_UNPUBLISHED = re.compile(rf"\.{re.escape(_LATEST)}-(\d+)\.tmp")  # generation
_EXIT = 60.0  # seconds: at the end of a process, the other ranks may be gone


def _directory(directory: str | os.PathLike[str]) -> pathlib.Path:
    """Return the path of a directory, which need not exist."""
    if not isinstance(directory, (str, os.PathLike)) or not os.fspath(directory):
        raise errors.InvalidError(f"directory: expected the path of a directory, found {directory!r}")
    path = pathlib.Path(directory)
    if path.exists() and not path.is_dir():
        raise errors.InvalidError(f"directory: expected a directory, found the file {str(path)!r}")
    return path


class Checkpoints:
    """Saves a model so that each record is applied exactly once per pass to the model that is loaded, whatever is killed.

    The master must have `--explicit-commit`. Call `restore` before the loop. A batch with one `optimizer.step()` or several is a step. Batches
    without it accumulate: they belong to the next step, which must come no later than the batch for which `loader.is_last` is true.

    A step is saved every `every` steps, at the end of a pass, and when the master requires it. The order is: temporary file, fsync, rename,
    flush, commit, publish. After a crash between any two of them, `restore` loads the last committed step, and the records after it are
    dispatched again. The file is written in the background from a copy of the state; at most one step is being saved.

    `save(path)` and `load(path)` replace the state of `model` and `optimizer`. They run in the foreground, on each rank of the group of the
    loader, and `path` is a file or a directory. Without them, rank 0 saves and each rank loads.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        loader: Loader,
        *,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        every: int = 200,
        save: Callable[[str], None] | None = None,
        load: Callable[[str], None] | None = None,
    ) -> None:
        """See the class."""
        every = whole("every", every, 1)
        if not isinstance(loader, Loader):
            raise TypeError(f"loader: expected a loader of trainmaster, found {type(loader).__name__}: use tm.torch.DataLoader or tm.Loader")
        optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else optimizer
        if not isinstance(optimizers, Sequence) or not optimizers or not all(isinstance(o, torch.optim.Optimizer) for o in optimizers):
            raise TypeError(f"optimizer: expected an optimizer of PyTorch or a list of them, found {optimizer!r}")
        if not isinstance(model, (torch.nn.Module, type(None))):
            raise TypeError(f"model: expected a torch.nn.Module, found {type(model).__name__}: its state is saved with save= and load=")
        functions(save=save, load=load)
        self.directory = _directory(directory)
        if loader.checkpoints is not None:
            raise errors.InvalidError("checkpoints: expected one for each loader, found another one of this loader: use that one")
        if (save is None) != (load is None) or (save is None) == (model is None):
            raise ValueError("expected either model, or both save and load")
        if not loader.client.explicit and not loader.client.over:
            raise errors.InvalidError("checkpoints: expected a job of explicit commits, found another: start its master with --explicit-commit")
        self.loader, self.every = loader, every
        self._model = model.module if isinstance(model, DistributedDataParallel) else model
        self._optimizers = list(optimizers)
        self._is_single = isinstance(optimizer, torch.optim.Optimizer)
        self._save, self._load = save, load
        self.step = self.committed = 0
        self._in_hand: Mapping[int, int] | None = None  # records of the batch in hand
        self._steps = 0  # that the optimizers have made with it
        self._open: dict[int, int] = {}  # records of tasks that are used and not applied
        self._has_open = False  # batches are used and not applied, also those without records of a group
        self._last_used = -1  # number of the last batch that the loop has used, from 0
        self._is_due = self._is_restored = self._is_between = False
        self._generation = 0  # of the ring: the incarnation of its rank 0
        self._saving: _Saving | None = None
        self._committed: list[str] = []  # names of the last files that this job has committed
        for o in self._optimizers:
            o.register_step_pre_hook(self._before_step)
            o.register_step_post_hook(self._after_step)
        loader.checkpoints = self
        this = weakref.ref(self)
        atexit.register(_at_exit, this)

    def restore(self) -> int:
        """Load the last committed step, and return its number: 0 for a new model. The data continues after it.

        In a group, each rank calls it.
        """
        step = -1 if self._is_over() else self._number(self._last_step)
        if step < 0:
            return self._restore_ended()
        if step:
            self._read(step)
        self._begin_at(step)
        return step

    def commit(self) -> None:
        """Save and commit now. Without a new step since the last commit, finished tasks count with a step of their own.

        In a group, each rank calls it at the same step.
        """
        self._require_restored("commit()")
        try:
            has_stepped = self._steps > 0
            if has_stepped:
                self.loader.done()
            self.finish()
            if self.committed == self.step:
                if has_stepped:
                    return
                self.step += 1
            self._begin_save()
            self.finish()
        except self.loader.client._lost as e:
            raise errors.RolledBackError(f"checkpoints: the session was lost: start the script again from the last committed step ({e})") from e

    def _require_restored(self, what: str) -> None:
        if not self._is_restored:
            raise errors.InvalidError(f"checkpoints: expected restore() before {what}, found none: call it")

    def applied(self) -> None:
        """Note that a step has applied the batch in hand. Each step of the optimizer calls it; call it for a batch that needs no step.

        After `loader.done()`, the batches that no earlier step has applied are meant.
        """
        if not self._has_batches():
            return
        if self._in_hand is not None:
            self._steps += 1
        else:
            self._apply()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data at this step, which belongs to the state of the model: format, job and step."""
        if self._steps:
            self.loader.done()
        return {"format": _FORMAT, "job": self.loader.client.job_id, "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the step of a model that was loaded. It must be the last committed step of this job.

        In a group, each rank calls it, unless `load` of `restore` does.
        """
        what = "state of the loader"
        if self._restoring is not None:
            self._check(state, *self._restoring, what)
            return
        step = -1 if self._is_over() else self._number(self._last_step)
        if step < 0:
            step, job = self._step_of_ended()
            self._check(state, step, job, what)
            self._note_end(step)
        else:
            self._check(state, step, self.loader.client.job_id, what)
            self._begin_at(step)

    _restoring: tuple[int, str] | None = None  # the step that restore loads, and its job

    # What the loader calls.

    @property
    def _unapplied(self) -> Collection[int]:
        """Tasks with records that the loop has used, and no step has applied."""
        return self._open.keys()

    def _resume(self) -> None:
        """Note that the loop begins, or begins again. A batch that was left after its step is used."""
        self._require_restored("the loop")
        self._require_whole()
        if self._steps:
            self._end()

    def _begin(self, counts: Mapping[int, int]) -> None:
        """Note that the loop has a new batch, with these numbers of records of tasks."""
        self._require_restored("the loop")
        self._require_whole()
        self._in_hand, self._steps = counts, 0

    def _end(self) -> None:
        """Note that the loop has used the batch."""
        self._require_whole()
        if self._in_hand is None:
            return
        self._is_between = True
        for task, n in self._in_hand.items():
            self._open[task] = self._open.get(task, 0) + n
        self._has_open = True
        if self._steps:
            self._apply()
        self._in_hand, self._steps, self._last_used = None, 0, self.loader.account.consumed
        self._is_between = False

    def _apply(self) -> None:
        """Note a step that has applied all used batches."""
        self.step += 1
        self._report(self._open, self.step)
        self._open, self._has_open = {}, False
        self._is_due = self._is_due or self.step % self.every == 0

    def _has_batches(self) -> bool:
        """Whether the script has batches for a step. Between two passes, it does not have the batch that was read ahead."""
        return not self.loader._is_ahead and (self._in_hand is not None or self._has_open)

    def _skip(self, counts: Mapping[int, int]) -> None:
        """Note records that the loop does not get: they need no step."""
        self._require_whole()
        self._is_between = True
        if self._open:  # the records of a task are applied in order
            for task, n in counts.items():
                self._open[task] = self._open.get(task, 0) + n
        else:
            self._report(counts, max(1, self.step))
        self._last_used = self.loader.account.consumed
        self._is_between = False

    def _require_whole(self) -> None:
        """Refuse to continue after an exception in the middle of a step: what the model has is not known."""
        if self._is_between:
            raise errors.RolledBackError("checkpoints: an exception has interrupted a step: start the script again from the last committed step")

    def _boundary(self) -> None:
        """Begin or continue to save: the batch is consumed."""
        try:
            if self._is_due:
                self._is_due = False
                self.finish()
                self._begin_save()
            elif self._saving is not None:
                self._continue(self._saving)
        except self.loader.client._lost:
            self.loader.client._is_lost = True  # the loop ends with its error

    def _settle(self) -> None:
        """Wait until the file is written."""
        if self._saving is not None and self._saving.is_writing():
            assert self._saving.thread is not None
            self._saving.thread.join()

    def finish(self, limit: float | None = None) -> None:
        """Wait until the step that is being saved is committed."""
        s = self._saving
        if s is None or not self._has_file(s):
            return
        client = self.loader.client
        if s.request is not None:
            client._link.give_up(s.request)
            s.request = None
        before = client.timeout
        client.timeout = min(before, before if limit is None else limit)
        try:
            with contextlib.suppress(errors.OverError):  # the job has ended with this step
                client.flushed(s.step)
                client.commit(s.step)
        finally:
            client.timeout = before
        self._commit_is_done(s)

    def _before_step(self, *_: Any) -> None:
        self._require_whole()
        self._is_between = self._has_batches()

    def _after_step(self, *_: Any) -> None:
        self.applied()
        self._is_between = False

    def _last_step(self) -> int:
        try:
            return self.loader.client.last_step()
        except errors.OverError:
            return -1

    def _number(self, of_rank_0: Callable[[], int]) -> int:
        """Return a number of rank 0 on each rank."""
        group = self.loader.group
        if group is None:
            return of_rank_0()
        return group.number(of_rank_0() if group.rank == 0 else 0)

    def _barrier(self) -> None:
        self._number(lambda: 0)

    def _writes(self) -> bool:
        return self.loader.group is None or self.loader.group.rank == 0

    def _begin_at(self, step: int) -> None:
        """Begin a generation of the ring at a step that all ranks have loaded."""
        client = self.loader.client
        self._settle()
        self._saving = None
        self._require_one_order()
        self._generation = self._number(lambda: client._incarnation)  # unique and growing
        if self._writes():
            published = self._claim(step)
            try:
                client.rollback(step)
                name = self._found(step)
                if published.get("job") == client.job_id:
                    self._remove_uncommitted(name)  # first: they can have filled the disk
                self._publish(step, name)
            except errors.OverError:
                client._end()
        self._barrier()
        if not self._writes():
            found = self._last_step()
            if found < 0:
                client._end()
            elif found != step:
                raise errors.RolledBackError(f"checkpoints: expected step {step}, with which rank 0 began, found {found}: start all ranks again")
        self.step = self.committed = step
        self._in_hand, self._steps, self._open, self._has_open = None, 0, {}, False
        self._is_restored, self._is_due = True, False

    def _is_over(self) -> bool:
        """Whether the job has ended, on any rank."""
        group = self.loader.group
        is_over = bool(self.loader.client.over)
        return is_over if group is None else group.any(is_over)

    def _restore_ended(self) -> int:
        """Load the last step of a job that has ended."""
        step, job = self._step_of_ended()
        self._read(step, job)
        self._note_end(step)
        return step

    def _note_end(self, step: int) -> None:
        client = self.loader.client
        client._end()
        self._is_restored = True
        self.step = self.committed = step

    def _step_of_ended(self) -> tuple[int, str]:
        """Return the last step of a job that has ended, whose master cannot be asked, and the job."""
        published, own, files = self._published(), self.loader.client.job_id, self._files()
        job = str(published.get("job", own))
        last = published.get("generation", max((generation for _, generation, _ in files), default=0))
        # The process that was the last to begin can have been killed after a commit, before it has published it.
        step = max([int(published.get("step", 0)), *(s for s, generation, _ in files if generation == last)])
        if not step or not job or (own and own != job):
            found = f"job {job}" if published else "no file, or a damaged one"
            raise errors.NotFoundError(
                f"{self.directory / _LATEST}: expected the last step of the job, which has ended, found {found}: use the directory of this job"
            )
        if not own:
            log.warning("the job had ended before this process joined it: step %d of job %s, which is in %s, is loaded", step, job, self.directory)
        return step, job

    def _published(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.directory / _LATEST).read_text()))
        except (FileNotFoundError, ValueError, TypeError):  # damaged: the start of a job that runs writes it again
            return {}

    def _order(self) -> int | None:
        """Return what gives the records of a task their order: the seed, or None if they are not shuffled."""
        account = self.loader.account
        return int(account.seed) if account.shuffle else None

    def _require_one_order(self) -> None:
        """Require the same order on all ranks. A rank continues at the number of records that others have applied."""
        group, order = self.loader.group, self._order()
        if group is None:
            return
        mine = 0 if order is None else 1 + order % 2**62
        if group.any(group.number(mine) != mine):
            raise errors.InvalidError(
                f"checkpoints: expected the same shuffle and seed on all ranks, found {_name_of(order)} on rank {group.rank} "
                "and another order on another rank: give all ranks the same"
            )

    def _claim(self, step: int) -> dict[str, Any]:
        """Require that the directory has no checkpoints of another job or another order, and return what is published in it."""
        job, published = self.loader.client.job_id, self._published()
        is_own = published.get("job") == job
        if step == 0 and not is_own and (files := self._files()):
            raise errors.InvalidError(
                f"{self.directory}: expected no checkpoints, since job {job} has no committed step, found {files[-1][2]} "
                f"of job {published.get('job', 'unknown')}: use a directory of its own for each job"
            )
        if step and is_own and published.get("seed") != self._order():
            raise errors.InvalidError(
                f"{self.directory}: expected {_name_of(published.get('seed'))}, with which step {step} was trained, "
                f"found {_name_of(self._order())}: keep shuffle and seed in a job"
            )
        self._committed = list(published.get("files", ())) if is_own else []
        return published

    def _publish(self, step: int, name: str) -> None:
        """Name the last committed step and its file, and remove the files of earlier steps."""
        job, published = self.loader.client.job_id, self._published()
        names = [n for n in self._committed if n != name] + [name] * bool(name)
        self._committed = names[-_KEPT:]
        if published.get("job") == job and published.get("generation", 0) > self._generation and published["step"] >= step:
            return  # another process has begun at this step, or after it
        state = {"format": _FORMAT, "job": job, "step": step, "files": self._committed, "generation": self._generation, "seed": self._order()}
        self.directory.mkdir(parents=True, exist_ok=True)
        temporary = self.directory / f".{_LATEST}-{self._generation}.tmp"
        _replace(self.directory / _LATEST, temporary, lambda path: path.write_text(json.dumps(state) + "\n"))
        for n in names[:-_KEPT]:
            _remove(self.directory / n)

    def _remove_uncommitted(self, committed: str) -> None:
        """Remove files of earlier generations that were not committed: no process can commit them any more."""
        for _, generation, name in self._files("pt", "tmp"):
            if generation < self._generation and name not in (*self._committed, committed):
                _remove(self.directory / name)
        for path in self.directory.glob(f".{_LATEST}-*.tmp"):
            if (m := _UNPUBLISHED.fullmatch(path.name)) and int(m[1]) < self._generation:
                _remove(path)

    def _report(self, counts: Mapping[int, int], step: int) -> None:
        try:
            for task, n in counts.items():
                self.loader.client._post("applied", task=task, step=step, n=n)
        except self.loader.client._lost:
            self.loader.client._is_lost = True  # the loop ends with its error

    def _begin_save(self) -> None:
        """Begin to save the step: what follows is in another one."""
        self.loader._sampler.report_applied()
        self._saving = s = _Saving(self.step)
        path = self._path(s.step)
        if self._save is not None:
            self._save_with(self._save, path)
            s.is_complete = True
        elif not self._writes():
            s.is_complete = True
        else:
            assert self._model is not None
            optimizers = [_copy(o.state_dict()) for o in self._optimizers]
            state = {
                **self.state_dict(),
                "model": _copy(self._model.state_dict()),
                "optimizer": optimizers[0] if self._is_single else optimizers,
            }
            s.start(lambda: _store(path, lambda temporary: _write(state, temporary, path, self.committed)))

    def _save_with(self, save: Callable[[str], None], path: pathlib.Path) -> None:
        """Save with the function of the program, on each rank, into one path."""
        temporary = path.with_suffix(".tmp")
        if self._writes():
            self.directory.mkdir(parents=True, exist_ok=True)
            _remove(temporary)
        self._barrier()
        save(str(temporary))
        self._barrier()  # no rank writes any more
        _sync_all(temporary)
        self._barrier()
        if self._writes():
            if not temporary.exists():
                raise errors.NotFoundError(f"save: expected it to write {temporary}, found nothing: write to the path that it is given")
            _remove(path)
            os.replace(temporary, path)
            _sync(self.directory)

    def _continue(self, s: _Saving) -> None:
        """Go on if the file is written, or the master has answered."""
        client = self.loader.client
        if s.is_writing() or not self._has_file(s):
            return
        try:
            if s.request is not None:
                if not client._poll(s.request):
                    return
                s.request, s.is_flushed, is_done = None, True, s.is_flushed
                if is_done:
                    self._commit_is_done(s)
                    return
        except errors.MasterTimeoutError:  # the request is not undone: repeat it
            s.request = None
        s.request = client._begin("commit" if s.is_flushed else "flushed", step=s.step)

    def _has_file(self, s: _Saving) -> bool:
        """Wait for the file, and forget a step without a file: it must not be committed."""
        try:
            s.written()
        except Exception:
            self._saving = None
            raise
        if not s.is_complete:
            self._saving = None
        return s.is_complete

    def _commit_is_done(self, s: _Saving) -> None:
        self._saving = None
        self.committed = s.step
        if self._writes():
            self._publish(s.step, self._path(s.step).name)

    def _path(self, step: int) -> pathlib.Path:
        """Return the file of a step of this generation. No other process writes it, also if it saves the same step."""
        return self.directory / f"step-{step:012d}-{self._generation}.pt"

    def _files(self, *kinds: str) -> list[tuple[int, int, str]]:
        """Return step, generation and name of files, in this order."""
        found = [m for p in self.directory.glob("step-*") if (m := _NAME.fullmatch(p.name)) and m[3] in (kinds or ("pt",))]
        return sorted((int(m[1]), int(m[2]), m[0]) for m in found)

    def _found(self, step: int) -> str:
        """Return the name of the file of a committed step, empty if there is none.

        Generations after the commit begin at this step or later. Files of the step that are not committed are of earlier generations.
        """
        return next((name for s, _, name in reversed(self._files()) if s == step), "") if step else ""

    def _read(self, step: int, job: str = "") -> None:
        name, job = self._found(step), job or self.loader.client.job_id
        if not name:
            found = ", ".join(n for _, _, n in self._files()) or "no files"
            raise errors.NotFoundError(
                f"{self.directory}: expected step-{step:012d}-GENERATION.pt, the last committed step of job {job}, found {found}: "
                "use the directory of this job"
            )
        path = self.directory / name
        if self._load is not None:
            self._restoring = step, job
            try:
                self._load(str(path))
            finally:
                self._restoring = None
            return
        assert self._model is not None
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            if not isinstance(state, dict):
                raise TypeError(f"a {type(state).__name__}")
        except OSError:
            raise
        except Exception as e:
            raise errors.DamagedError(
                f"{path}: expected the state of step {step}, found a damaged file ({_shortly(e)}): "
                "restore it from a backup, or begin another job in another directory"
            ) from e
        self._check(state, step, job, str(path))
        try:
            self._model.load_state_dict(state["model"])
            for o, s in zip(self._optimizers, [state["optimizer"]] if self._is_single else state["optimizer"]):
                o.load_state_dict(s)
        except Exception as e:
            raise errors.InvalidError(
                f"{path}: expected the state of this model and optimizer, found that of others ({_shortly(e)}): make them as when it was saved"
            ) from e

    def _check(self, state: Mapping[str, Any], step: int, job: str, what: str) -> None:
        found = f"format {state.get('format')}, step {state.get('step')} of job {state.get('job')}"
        if state.get("format") == _FORMAT and state.get("job") == job and state.get("step") == step:
            return
        if not step:
            raise errors.InvalidError(f"{what}: expected none, since job {job} has no committed step, found {found}: begin with a new model")
        raise errors.InvalidError(f"{what}: expected format {_FORMAT}, step {step} of job {job}, found {found}: load the checkpoint of step {step}")


class _Saving:
    """A step that is being saved."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.request: int | None = None  # to the agent
        self.is_flushed = False
        self.is_complete = False  # the file has its name

    def start(self, write: Callable[[], None]) -> None:
        """Write the file in a thread. The process waits for it at its end."""

        def run() -> None:
            try:
                write()
                self.is_complete = True
            except BaseException as e:  # noqa: BLE001 the training loop raises it
                self.error = e

        self.thread = threading.Thread(target=run, name="trainmaster-save")
        self.thread.start()

    def is_writing(self) -> bool:
        """Whether the thread writes the file."""
        return self.thread is not None and self.thread.is_alive()

    def written(self) -> None:
        """Wait until the file is written. It raises the error of the thread."""
        if self.is_writing():
            assert self.thread is not None
            self.thread.join()
        self.thread = None
        if self.error is not None:
            raise self.error


def _at_exit(this: weakref.ref[Checkpoints]) -> None:
    checkpoints = this()
    if checkpoints is None or checkpoints.loader.client.is_closed:
        return
    if checkpoints.loader.group is not None and hasattr(sys, "last_value"):
        return  # this rank ends with an exception: the other ranks wait for it, and end when its process does
    try:
        checkpoints.finish(_EXIT)
    except Exception as e:  # noqa: BLE001 of any kind: torch.save raises RuntimeError on a full disk
        log.warning("the step that was being saved is not committed: %s", e)


def _name_of(order: int | None) -> str:
    return "no shuffle" if order is None else f"shuffle with seed {order}"


def _copy(state: Any) -> Any:
    """Copy the tensors of a state into memory of this process: the next step changes them."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, collections.OrderedDict):  # of a module: an attribute has the versions of its parts
        copied = copy.copy(state)
        copied.update((k, _copy(v)) for k, v in state.items())
        return copied
    if isinstance(state, Mapping):
        return {k: _copy(v) for k, v in state.items()}
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*[_copy(v) for v in state])
    if isinstance(state, (list, tuple)):
        return type(state)([_copy(v) for v in state])
    return state.item() if type(state).__module__ == "numpy" and hasattr(state, "item") and not getattr(state, "shape", ()) else state


def _write(state: Any, temporary: pathlib.Path, path: pathlib.Path, committed: int) -> None:
    try:
        torch.save(state, temporary)
        refused = torch.serialization.get_unsafe_globals_in_checkpoint(temporary)
    except Exception as e:
        free = shutil.disk_usage(path.parent).free
        raise errors.SaveError(
            f"{path}: expected to write it, found {_shortly(e)}: the disk has {free} free bytes. Step {committed} is the last committed one"
        ) from e
    if refused:  # a step that no start could load must not be committed
        raise errors.SaveError(
            f"{path}: expected a state of tensors, numbers, text and lists of them, found {', '.join(refused)}: use others, or save= and load=. "
            f"Step {committed} is the last committed one"
        )


def _shortly(e: Exception) -> str:
    """Return kind and first line of an error."""
    return f"{type(e).__name__}: {_plain(str(e)).partition(chr(10))[0]}"


def _plain(text: str) -> str:
    """Return a text without the colors of a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _store(path: pathlib.Path, write: Callable[[pathlib.Path], object]) -> None:
    """Write a file so that it has its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, path.with_suffix(".tmp"), write)
    _sync(path.parent)


def _replace(path: pathlib.Path, temporary: pathlib.Path, write: Callable[[pathlib.Path], object]) -> None:
    try:
        write(temporary)
        _sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            _remove(temporary)
        raise


def _remove(path: pathlib.Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync_all(path: pathlib.Path) -> None:
    """Sync a file, or a directory with all that is in it."""
    for p in [path, *path.rglob("*")] if path.is_dir() else [path] * path.exists():
        _sync(p)


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
