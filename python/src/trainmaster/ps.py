"""The client of the parameter servers of a job.

The agent has the connections to the servers. Parameters and gradients are in one memory, which this process and the agent map: no array goes
through their socket. `trainmaster.torch.ParameterServerOptimizer` is the client as an optimizer of PyTorch.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import errors
from ._check import whole
from .client import Client as Session
from .client import shared

Array = npt.NDArray[np.float32]
Arrays = Mapping[str, npt.ArrayLike]
Rows = Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]  # ids and their gradients, by table

_WITHOUT_DEFAULT = ("sgd", "momentum", "nesterov")  # rules for which each program must give a learning rate
_INITS = ("zeros", "uniform", "normal")
_RULES = ("sgd", "momentum", "nesterov", "adagrad", "adam", "adamw", "ftrl")
_NUMBERS = ("momentum", "beta1", "beta2", "epsilon", "initial_accumulator", "ftrl_beta", "l1", "l2", "weight_decay", "clip_value", "clip_norm")
_NUMBERS_OF_SCHEDULE = ("schedule_end", "schedule_factor")
_ABOVE_ZERO = ("lr", "beta1", "beta2", "epsilon", "ftrl_beta", "schedule_factor")  # 0 selects the default on the wire
_STEPS_OF_SCHEDULE = ("warmup_steps", "schedule_steps", "schedule_every")
_APPLIES = ("push", "push_pull", "stage")
_WIRE_DTYPES = ("float32", "bfloat16")
_SETTLE = 5.0  # seconds: an operation that an exception has interrupted may still read the gradients


class Table(NamedTuple):
    """A table of embeddings: rows of `dim` numbers by int64 id. docs/embedding-tables.md has the initial values of rows, and when rows are removed.

    `init` is zeros, uniform (in [-scale, scale)) or normal. A row without an update in the last `expire_after` steps is removed. The update number
    `admit_after` of an id creates its row. All trainers of a job give the same.
    """

    name: str
    dim: int
    init: str = "uniform"
    scale: float | None = None  # by default 0.05
    seed: int = 0
    expire_after: int | None = None  # None: never
    admit_after: int | None = None  # None: the first update

    def settings(self, kind: str = "table") -> dict[str, Any]:
        """Return the fields of the request ps_open, or raise an error. `kind` is what the error calls the table."""
        of = f"{kind} {self.name!r}: "
        if not isinstance(self.name, str) or not self.name:
            raise errors.InvalidError(f"{of}name: expected text, found {self.name!r}: the arguments are name, dim")
        if self.init not in _INITS:
            raise errors.InvalidError(f"{of}init: expected zeros, uniform or normal, found {self.init!r}")
        if self.admit_after is not None and self.expire_after is None:
            raise errors.InvalidError(f"{of}admit_after: expected expire_after with it, found none: rare ids would be counted for ever")
        scale = self.scale
        if scale is None:
            scale = 0.0 if self.init == "zeros" else 0.05
        if not isinstance(scale, (int, float, np.number)) or not 0 <= scale < math.inf:
            raise errors.InvalidError(f"{of}scale: expected a finite number of at least 0, found {scale!r}")
        return {
            "name": self.name,
            "dim": whole(f"{of}dim", self.dim, 1),
            "init": self.init,
            "scale": float(scale),
            "seed": whole(f"{of}seed", self.seed, 0),
            "expiry": 0 if self.expire_after is None else whole(f"{of}expire_after", self.expire_after, 1),
            "admission": 0 if self.admit_after is None else whole(f"{of}admit_after", self.admit_after, 1),
        }


class Client:
    """The parameters of a model on the parameter servers of a job.

    `model` has the initial parameters by name; one trainer of the job sets them, and `parameters` has those of the job. `optimizer` is the rule by
    which the servers apply gradients, `lr` its learning rate, and `settings` are its other numbers (`momentum`, `clip_norm`, `schedule`: see
    docs/optimizers.md, with _ for -). All trainers of a job give the same. `mode` is `async` or `sync`, as the job has it. `client` is
    the session; by default that of the loader.

    `tables` are the tables of embeddings of the model. `lookup` has their rows, and `rows` of a push or a stage their gradients: by the name of
    the table, ids, which may repeat, and a gradient for each.

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
        client: Session | None = None,
        staleness: int | None = None,
        wire_dtype: str = "float32",
        tables: Iterable[Table] = (),
        **settings: Any,
    ) -> None:
        """Connect to the servers. It waits until all of them run."""
        arrays = {name: np.asarray(a) for name, a in model.items()}
        for name, a in arrays.items():
            if a.dtype != np.float32:
                raise errors.InvalidError(f"parameter {name!r}: expected float32, found {a.dtype}: convert it")
        rule = _rule(optimizer, lr, settings)
        if wire_dtype not in _WIRE_DTYPES:
            raise errors.InvalidError(f"wire_dtype: expected float32 or bfloat16, found {wire_dtype!r}")
        stale = {} if staleness is None else {"policy": "scale", "limit": whole("staleness", staleness, 0)}
        if not isinstance(client, (Session, type(None))):
            raise TypeError(f"client: expected a tm.Client, found {client!r}")
        self.session = client or shared()
        if self.session.explicit:
            raise errors.InvalidError("parameter servers: expected a job without --explicit-commit, found one with it: the servers count the steps")
        if any(isinstance(getattr(f, "__self__", None), Client) for f in self.session._on_restart):
            raise errors.InvalidError("ps_open: expected one model in a session, found a second one: close() the first client")
        if stale and self.session._cuts:
            raise errors.InvalidError(f"staleness: expected none in a synchronous job, whose gradients are of the newest version, found {staleness}")
        self._settings: dict[str, Any] = {
            "tensors": [{"name": name, "shape": list(a.shape), "dtype": "float32"} for name, a in arrays.items()],
            "optimizer": {k: v for k, v in rule.items() if v is not None},
            "mode": mode or "",
            "staleness": stale,
            "wire_dtype": wire_dtype,
            "tables": [t.settings() for t in tables],
        }
        self._region: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.version = 0
        self.step = 0
        self._is_closed = False
        self.on_moved: Callable[[], None] | None = None  # after another session has other arrays
        self._last: dict[str, Any] = {"seq": 0}  # request
        self._done = 0  # sequence number of the last request that is answered
        self.on_answer: Callable[[bool], None] | None = None  # called with whether the servers have applied an update
        # A job without cuts never returns to its beginning. The arrays of the model change while it trains.
        self._initial = {name: a.copy() for name, a in arrays.items()} if self.session._cuts else {}
        self._begin(arrays)
        self.session._on_restart.append(self._reopen)

    def _begin(self, arrays: Arrays) -> None:
        """Open the arrays, in another session if this one has ended."""
        session = self.session
        has_tasks = session._has_tasks()
        while True:
            try:
                if session._is_lost:
                    session._restart(stays_lost=has_tasks)  # what the loop has in hand is not of the new session
                return self._open(arrays)
            except BaseException as e:
                session._is_lost = True  # the agent can have a model, and a session has one
                # A synchronous job rolls back when its servers have just started.
                if not isinstance(e, self.lost):
                    raise

    def close(self) -> None:
        """End the session of the trainer, so that another client can be made. Tasks in hand return to the queue. A repetition has no effect."""
        session = self.session
        if self._reopen in session._on_restart:
            session._report_at_end(limit=_SETTLE)
            session._on_restart.remove(self._reopen)
            session._optimizer, session._is_lost = None, True
        self._is_closed, self._done = True, self.sequence  # no later session gets an operation that was interrupted

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
        return self.session._lost

    @property
    def sequence(self) -> int:
        """Number of requests. An exception in `push` or another method that leaves it as it was has come before the request: it has no effect.

        Otherwise the agent has the request, or gets it with the next call.
        """
        return int(self._last["seq"])

    def pull(self, out: Mapping[str, Any] | None = None) -> int:
        """Get the parameters. Return their version."""
        self._do("pull")
        return self._copied(out)

    def lookup(self, table: str, ids: npt.ArrayLike) -> Array:
        """Return a copy of rows, of shape [ids, dim], and their initial values for ids without a row. A lookup creates no row.

        In a synchronous job the rows are at least as new as the parameters.
        """
        named, (values,) = self._place("lookup", {table: (_ids(table, ids), None)})
        self._request("lookup", rows=named)
        return np.array(values)

    def push(self, step: int | None = None, grads: Arrays | None = None, *, scale: float = 1.0, rows: Rows | None = None) -> int:
        """Apply gradients, each the mean over a batch, in an asynchronous job. `scale` multiplies the learning rate. Return the version.

        Steps grow. By default a step is the number of updates of the parameters plus one, which the schedule of the learning rate counts.
        """
        sent = _of_push(step, scale)
        self._fill(grads)
        return self._do("push", **sent, **self._gradients_of("push", rows))

    def push_pull(
        self,
        step: int | None = None,
        grads: Arrays | None = None,
        out: Mapping[str, Any] | None = None,
        *,
        scale: float = 1.0,
        rows: Rows | None = None,
    ) -> int:
        """Do `push` and `pull` in one exchange."""
        sent = _of_push(step, scale)
        self._fill(grads)
        self._do("push_pull", **sent, **self._gradients_of("push_pull", rows))
        return self._copied(out)

    def stage(self, version: int | None = None, grads: Arrays | None = None, *, records: int, rows: Rows | None = None) -> bool:
        """Wait for a synchronous step with gradients, each the sum over `records`, that were computed from the parameters of `version`.

        The default of `version` is that of the last pull. Return whether the step has the gradients. If not, they came too late: compute those of
        the same batch again, from the parameters that are here now.
        """
        records = whole("records", records, 1)
        version = 0 if version is None else whole("version", version, 0)
        self._fill(grads)
        reply = self._request("stage", version=version, records=records, **self._gradients_of("stage", rows))
        return bool(reply["included"])

    def settle(self) -> bool:
        """Wait for an operation that an exception has interrupted: the agent still reads the gradients. Return whether there was one."""
        if self._done == self.sequence:
            return False
        try:
            self._await()
        except self.lost:
            self.session._is_lost = True
            raise
        return True

    def _fill(self, grads: Arrays | None) -> None:
        if grads is None:
            return
        self.settle()
        if grads.keys() != self.gradients.keys():
            raise errors.InvalidError(f"grads: expected the names of the model, found others: {sorted(grads.keys() ^ self.gradients.keys())}")
        found = {name: np.asarray(array) for name, array in grads.items()}
        for name, array in found.items():
            if array.shape != self.gradients[name].shape:
                raise errors.InvalidError(f"grads: {name!r}: expected an array of shape {self.gradients[name].shape}, found {array.shape}")
        for name, array in found.items():
            np.copyto(self.gradients[name], array, casting="same_kind")

    def _gradients_of(self, op: str, rows: Rows | None) -> dict[str, Any]:
        """Have gradients of rows in the region, and return the field of the request that names them."""
        if not rows:
            return {}
        named, _ = self._place(op, {name: (_ids(name, ids), np.asarray(gradients)) for name, (ids, gradients) in rows.items()})
        return {"rows": named}

    def _place(self, op: str, rows: Mapping[str, tuple[npt.NDArray[np.int64], npt.NDArray[Any] | None]]) -> tuple[list[dict[str, Any]], list[Array]]:
        """Write ids, and gradients if there are any, into the region. Return the field of the request, and the places of the values."""
        self._check_open(op)
        self.settle()
        dims = {t["name"]: int(t["dim"]) for t in self._settings["tables"]}
        named: list[dict[str, Any]] = []
        at = 0
        for name, (ids, gradients) in rows.items():
            if name not in dims:
                raise errors.InvalidError(f"{op}: table {name!r}: expected one of the tables of the client, {sorted(dims)}")
            if gradients is not None and gradients.shape != (len(ids), dims[name]):
                raise errors.InvalidError(f"{op}: table {name!r}: expected gradients of shape {(len(ids), dims[name])}, found {gradients.shape}")
            begin = at + 8 * len(ids)
            named.append({"table": name, "n": len(ids), "ids": at, "values": begin})
            at = (begin + 4 * len(ids) * dims[name] + 7) // 8 * 8
        if at > len(self._region):
            self._grow(op, at)
        places = []
        for place, (ids, gradients) in zip(named, rows.values()):
            begin, end = place["values"], place["values"] + 4 * len(ids) * dims[place["table"]]
            self._region[place["ids"] : begin].view(np.int64)[:] = ids
            places.append(self._region[begin:end].view(np.float32).reshape(len(ids), dims[place["table"]]))
            if gradients is not None:
                np.copyto(places[-1], gradients, casting="same_kind")
        return named, places

    def _grow(self, op: str, size: int) -> None:
        """Make the region of rows at least this large. It has room for twice as much, so that it seldom grows."""
        self.session._require_open(op)
        try:
            reply, descriptor = self.session._link.open("ps_rows", bytes=max(2 * size, 1 << 16))
        except self.lost:
            self.session._is_lost = True
            raise
        try:
            self._region = np.frombuffer(mmap.mmap(descriptor, reply["size"]), np.uint8)
        finally:
            os.close(descriptor)

    def _copied(self, out: Mapping[str, Any] | None) -> int:
        for name, array in (out or {}).items():
            found, own = np.shape(array), self.parameters[name].shape if name in self.parameters else None
            if found != own:
                raise errors.InvalidError(f"out: {name!r}: expected an array of the model, of shape {own}, found shape {found}")
            np.copyto(array, self.parameters[name])
        return self.version

    def _do(self, op: str, **fields: Any) -> int:
        self._request(op, **fields)
        return self.version

    def _request(self, op: str, **fields: Any) -> dict[str, Any]:
        """Do an operation. The agent does it once, although the request is repeated while no server answers."""
        self._check_open(op)
        if op in _APPLIES and self.session._is_lost:
            raise errors.SessionLostError(f"{op}: the batch in hand is of a session that has ended: ask for the next batch")
        self.settle()
        self._last = {"op": op, "seq": self.sequence + 1, **fields}
        try:
            return self._await()
        except self.lost:
            self.session._is_lost = True
            raise
        except (errors.Error, TimeoutError):
            raise
        except BaseException:
            with contextlib.suppress(Exception):  # the exception that is raised again is the reason
                self.session._link.call(**{**self._last, "timeout": _SETTLE}) if self._done != self.sequence else None
            raise

    def _check_open(self, op: str) -> None:
        if self._is_closed:
            raise errors.InvalidError(f"{op}: expected an open client, found a closed one")
        if self.session.over and not self.sequence:
            raise errors.OverError(f"{op}: the job had ended before this trainer joined")

    def _await(self) -> dict[str, Any]:
        try:
            reply = self.session._call(**self._last)
        except errors.MasterTimeoutError:
            raise  # it continues: the next call waits for it
        except errors.Error:
            self._note_answer(False)
            raise
        if self._last["op"] != "lookup":  # the parameters stay
            self.version, self.step = int(reply["version"]), int(reply.get("step", self.step))
        self._note_answer(True)
        return reply

    def _note_answer(self, is_applied: bool) -> None:
        if self.on_answer is not None and self._last["op"] in _APPLIES:
            self.on_answer(is_applied)
        self._done = self.sequence

    def _open(self, initial: Mapping[str, Any]) -> None:
        self._done = self.sequence
        self._region = np.zeros(0, np.uint8)
        if self.session.over:  # there is nothing to train
            self._layout = layout = _local(self._settings)
            flat = np.zeros(layout["size"] // 4, np.float32)
        else:
            self._layout, descriptor = self.session._link.open("ps_open", **self._settings)
            layout = self._layout
            try:
                flat = np.frombuffer(mmap.mmap(descriptor, layout["size"]), np.float32)
            finally:
                os.close(descriptor)
        begin = layout["gradients"] // 4
        self.flat_gradients: Array = flat[begin:]
        self.parameters: dict[str, Array] = {}
        self.gradients: dict[str, Array] = {}
        for t, place in zip(self._settings["tensors"], layout["tensors"]):
            size = int(np.prod(t["shape"], dtype=np.int64))
            for arrays, at in ((self.parameters, place["parameter"] // 4), (self.gradients, place["gradient"] // 4)):
                arrays[t["name"]] = flat[at : at + size].reshape(t["shape"])
        for name, array in initial.items():
            np.copyto(self.parameters[name], array)
        if not self.session.over:
            self._request("ps_init")

    def _reopen(self) -> None:
        """Continue in another session of the trainer."""
        self._open(dict(self.parameters) if self.session.over else self._initial or dict(self.parameters))
        if self.on_moved is not None:
            self.on_moved()


def _of_push(step: int | None, scale: float) -> dict[str, Any]:
    """Return the fields of a push."""
    if not isinstance(scale, numbers.Real) or not math.isfinite(scale):
        raise errors.InvalidError(f"scale: expected a finite number, found {scale!r}")
    return {"step": 0 if step is None else whole("step", step, 0, 1 << 62), "scale": float(scale)}


def _local(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layout of arrays of this process alone."""
    at, tensors = 0, []
    for t in settings["tensors"]:
        tensors.append(at)
        at += 4 * int(np.prod(t["shape"], dtype=np.int64))
    places = [{"parameter": begin, "gradient": at + begin} for begin in tensors]
    rate = settings["optimizer"].get("learning_rate") or 1.0
    return {"size": 2 * at, "gradients": at, "tensors": places, "mode": settings["mode"] or "async", "learning_rate": rate}


def _ids(table: str, ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
    found = np.asarray(ids)
    if found.shape == (0,):
        return found.astype(np.int64)  # an empty list has no type
    if found.dtype != np.int64 or found.ndim != 1:
        raise errors.InvalidError(f"table {table!r}: expected ids of type int64 in one dimension, found {found.dtype} of shape {found.shape}")
    return found


def _rule(optimizer: str, lr: float | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule of the servers, or raise an error that names the argument."""
    if optimizer not in _RULES:
        raise errors.InvalidError(f"optimizer: expected one of {', '.join(_RULES)}, found {optimizer!r}: the servers run the rule")
    rule: dict[str, Any] = {"kind": optimizer}
    for name, value in {"lr": lr, **settings}.items():
        if value is None:
            continue
        if name in _STEPS_OF_SCHEDULE:
            rule[name] = whole(name, value, 0)
        elif name == "schedule":
            rule[name] = value
        elif name not in ("lr", *_NUMBERS, *_NUMBERS_OF_SCHEDULE):
            known = ", ".join((*_NUMBERS, "schedule", *_STEPS_OF_SCHEDULE, *_NUMBERS_OF_SCHEDULE))
            raise errors.InvalidError(f"{name}: expected a setting of a rule ({known}), found an unknown name")
        elif not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf or (name in _ABOVE_ZERO and np.float32(value) == 0):
            expected = "above 0" if name in _ABOVE_ZERO else "of at least 0"
            raise errors.InvalidError(f"{name}: expected a finite number {expected}, found {value!r}")
        else:
            rule["learning_rate" if name == "lr" else name] = float(value)
    if lr is None and optimizer in _WITHOUT_DEFAULT:
        raise errors.InvalidError(f"lr: expected a learning rate above 0, found none: {optimizer} has no default")
    if "momentum" in rule and optimizer not in ("momentum", "nesterov"):
        raise errors.InvalidError(f"momentum: expected optimizer momentum or nesterov with it, found {optimizer!r}")
    if "schedule" in rule and not rule.get("schedule_steps") and rule["schedule"] in ("linear", "cosine"):
        raise errors.InvalidError(f"schedule_steps: expected the number of steps of schedule {rule['schedule']!r}, found none")
    rule["schedule"] = _schedule(rule)
    return rule


def _schedule(rule: dict[str, Any]) -> dict[str, Any] | None:
    """Take the settings of the schedule out of those of the rule."""
    names = {"schedule": "kind", "warmup_steps": "warmup", "schedule_steps": "steps", "schedule_end": "end"}
    names |= {"schedule_every": "every", "schedule_factor": "factor"}
    found = {field: rule.pop(name) for name, field in names.items() if name in rule}
    return found or None
