"""The client of the parameter servers of a job.

The agent has the connections to the servers. Parameters and gradients are in one memory, which this process and the agent map: no array goes
through their socket. `trainmaster.torch.ParameterServerOptimizer` is the client as an optimizer of PyTorch.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from . import errors
from .client import Client as Job
from .client import shared

Array = npt.NDArray[np.float32]
Arrays = Mapping[str, npt.ArrayLike]

_SETTLE = 5.0  # seconds: an operation that an exception has interrupted may still read the gradients


class Client:
    """The parameters of a model on the parameter servers of a job.

    `model` has the initial parameters by name; one trainer of the job sets them, and `parameters` has those of the job. `optimizer` is the rule by
    which the servers apply gradients, `lr` its learning rate, and `settings` are its other numbers (`momentum`, `clip_norm`, `schedule`: see
    docs/optimizers.md, with _ for -). All trainers of a job give the same. `mode` is `async` or `sync`, as the job has it. `client` is
    the session; by default that of the loader.

    `parameters` and `gradients` are views of the shared memory, by name. `push_pull` and `stage` send `gradients`, or copies of the arrays that are
    given.

    After an error of `lost` the tasks of this session belong to others: ask the loader for the next batch. It begins another session, in
    which `parameters` and `gradients` are other arrays.
    """

    def __init__(
        self,
        model: Arrays,
        *,
        optimizer: str = "sgd",
        lr: float | None = None,
        mode: str | None = None,
        client: Job | None = None,
        staleness: int | None = None,
        wire_dtype: str = "float32",
        **settings: Any,
    ) -> None:
        """Connect to the servers. It waits until all of them run."""
        arrays = {name: np.asarray(a) for name, a in model.items()}
        for name, a in arrays.items():
            if a.dtype != np.float32:
                raise errors.InvalidError(f"parameter {name!r}: expected float32, found {a.dtype}: convert it")
        self.job = client or shared()
        rule: dict[str, Any] = {"kind": optimizer, **settings}
        if lr is not None:
            rule["learning_rate"] = lr
        rule["schedule"] = _schedule(rule)
        self._settings: dict[str, Any] = {
            "tensors": [{"name": name, "shape": list(a.shape), "dtype": "float32"} for name, a in arrays.items()],
            "optimizer": {k: v for k, v in rule.items() if v is not None},
            "mode": mode or "",
            "staleness": {} if staleness is None else {"policy": "scale", "limit": staleness},
            "wire_dtype": wire_dtype,
        }
        self.version = 0
        self.step = 0
        self.on_moved: Callable[[], None] | None = None  # after another session has other arrays
        self._seq = 0
        self._pending: dict[str, Any] | None = None
        self._initial = arrays
        self._open(arrays)
        if not self.job.cuts:
            self._initial = {}  # a job without cuts never returns to its beginning
        self.job.on_restart.append(self._reopen)

    @property
    def mode(self) -> str:
        """Mode of the job: async or sync."""
        return str(self._layout["mode"])

    @property
    def learning_rate(self) -> float:
        """Learning rate of the job at its begin."""
        return float(self._layout["learning_rate"])

    @property
    def lost(self) -> tuple[type[Exception], ...]:
        """The errors after which the session has ended, and the loader begins another one."""
        return self.job.lost

    def pull(self, out: Mapping[str, Any] | None = None) -> int:
        """Get the parameters. Return their version."""
        self._do("pull")
        return self._copied(out)

    def push(self, step: int | None = None, grads: Arrays | None = None, *, scale: float = 1.0) -> int:
        """Apply gradients, each the mean over a batch, in an asynchronous job. `scale` multiplies the learning rate. Return the version.

        Steps grow. By default a step is the number of updates of the parameters plus one, which the schedule of the learning rate counts.
        """
        self._fill(grads)
        return self._do("push", step=step or 0, scale=scale)

    def push_pull(self, step: int | None = None, grads: Arrays | None = None, out: Mapping[str, Any] | None = None, *, scale: float = 1.0) -> int:
        """Do `push` and `pull` in one exchange."""
        self._fill(grads)
        self._do("push_pull", step=step or 0, scale=scale)
        return self._copied(out)

    def stage(self, version: int | None = None, grads: Arrays | None = None, *, records: int) -> bool:
        """Wait for a synchronous step with gradients, each the sum over `records`, that were computed from the parameters of `version`.

        The default of `version` is that of the last pull. Return whether the step has the gradients. If not, they came too late: compute those of
        the same batch again, from the parameters that are here now.
        """
        self._fill(grads)
        reply = self._request("stage", version=version or 0, records=records)
        return bool(reply["included"])

    def settle(self) -> None:
        """Wait for an operation that an exception has interrupted: the agent still reads the gradients."""
        if self._pending is not None:
            try:
                self._await()
            except self.lost:
                self.job.is_lost = True
                raise

    def _fill(self, grads: Arrays | None) -> None:
        if grads is None:
            return
        self.settle()
        if grads.keys() != self.gradients.keys():
            raise errors.InvalidError(f"grads: expected the names of the model, found others: {sorted(grads.keys() ^ self.gradients.keys())}")
        for name, array in grads.items():
            np.copyto(self.gradients[name], np.asarray(array), casting="same_kind")

    def _copied(self, out: Mapping[str, Any] | None) -> int:
        for name, array in (out or {}).items():
            np.copyto(array, self.parameters[name])
        return self.version

    def _do(self, op: str, **fields: Any) -> int:
        self._request(op, **fields)
        return self.version

    def _request(self, op: str, **fields: Any) -> dict[str, Any]:
        """Do an operation. The agent does it once, although the request is repeated while no server answers."""
        if self.job.over and not self._seq:
            raise errors.OverError(f"{op}: the job had ended before this trainer joined")
        self.settle()
        self._seq += 1
        self._pending = {"op": op, "seq": self._seq, **fields}
        try:
            return self._await()
        except self.lost:
            self.job.is_lost = True
            raise
        except (errors.Error, TimeoutError):
            raise
        except BaseException:
            with contextlib.suppress(Exception):  # the exception that is raised again is the reason
                self.job.link.call(**{**self._pending, "timeout": _SETTLE}) if self._pending else None
            raise

    def _await(self) -> dict[str, Any]:
        pending = self._pending or {}
        try:
            reply = self.job.call(**pending)
        except errors.MasterTimeoutError:
            raise  # it continues: the next call waits for it
        except errors.Error:
            self._pending = None
            raise
        self.version, self.step = int(reply["version"]), int(reply.get("step", self.step))
        self._pending = None
        return reply

    def _open(self, initial: Mapping[str, Any]) -> None:
        self._pending = None
        if self.job.over:  # there is nothing to train
            self._layout = layout = _local(self._settings)
            flat = np.zeros(layout["size"] // 4, np.float32)
        else:
            self._layout, descriptor = self.job.link.open("ps_open", **self._settings)
            layout = self._layout
            try:
                flat = np.frombuffer(mmap.mmap(descriptor, layout["size"]), np.float32)
            finally:
                os.close(descriptor)
        begin = layout["gradients"] // 4
        self.flat_parameters: Array = flat[:begin]
        self.flat_gradients: Array = flat[begin:]
        self.parameters: dict[str, Array] = {}
        self.gradients: dict[str, Array] = {}
        for t, place in zip(self._settings["tensors"], layout["tensors"]):
            size = int(np.prod(t["shape"], dtype=np.int64))
            for arrays, at in ((self.parameters, place["parameter"] // 4), (self.gradients, place["gradient"] // 4)):
                arrays[t["name"]] = flat[at : at + size].reshape(t["shape"])
        for name, array in initial.items():
            np.copyto(self.parameters[name], array)
        if not self.job.over:
            self._request("ps_init")

    def _reopen(self) -> None:
        """Continue in another session of the trainer."""
        self._open(self._initial or dict(self.parameters))
        if self.on_moved is not None:
            self.on_moved()


def _local(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layout of arrays of this process alone."""
    at, tensors = 0, []
    for t in settings["tensors"]:
        tensors.append(at)
        at += 4 * int(np.prod(t["shape"], dtype=np.int64))
    places = [{"parameter": begin, "gradient": at + begin} for begin in tensors]
    rate = settings["optimizer"].get("learning_rate") or 1.0
    return {"size": 2 * at, "gradients": at, "tensors": places, "mode": settings["mode"] or "async", "learning_rate": rate}


def _schedule(rule: dict[str, Any]) -> dict[str, Any] | None:
    """Take the settings of the schedule out of those of the rule."""
    names = {"schedule": "kind", "warmup_steps": "warmup", "schedule_steps": "steps", "schedule_end": "end"}
    names |= {"schedule_every": "every", "schedule_factor": "factor"}
    found = {field: rule.pop(name) for name, field in names.items() if name in rule}
    return found or None
