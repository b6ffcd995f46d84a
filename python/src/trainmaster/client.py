"""The client of a job: tasks and their records, one after the other. loader.py and torch have loaders of batches."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import itertools
import logging
import math
import multiprocessing
import os
import re
import socket
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from . import _check, errors
from ._agent import STOPPED, Agent, Chunks, await_released, started
from ._check import whole
from ._link import Link, Records
from .account import Work
from .local import for_this_process, has_ended, is_gone, lacks_dataset, note_dataset, note_end

log = logging.getLogger("trainmaster")

WINDOW = 64  # tasks that a trainer may hold
LEAST_WINDOW = 2
ENDED = "the job has ended"
MEMBER_LOST = "the session of this member was lost: begin again from the last step"
DRAINED = "an operator drains this trainer"
LATE = "the job ended before this trainer joined"
_SLICE = 10.0  # seconds between messages while no master answers
_PAUSE = 1.0  # seconds between looks for commands, while there is no task
_ANSWER = 1.0  # seconds to wait for the answer that there is no task now
_ERROR_BYTES = 256  # of the text with which a task fails
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_RESTARTS = 5  # of the agent, without a task between them
_BRIEF = 2.0  # seconds: a session that the master has ended within them was likely taken by another trainer with its name
_MOST_BRIEF = 5  # in a row

_EXPECTED = {  # what a request waits for that can wait although a master answers
    "stage": "the gradients of the other trainers that have a task",
    "boundary": "the cut, for which all trainers stop",
    "commit": "all members to flush the step",
    "ps_init": "another trainer to set the initial parameters, or parameter servers",
    **dict.fromkeys(("lookup", "pull", "push", "push_pull"), "parameter servers"),
}

_open: list[weakref.ref[Client]] = []
_waiting: list[Client] = []  # made by `shared`, for the next loader
_numbers = itertools.count(1)


class _Held(NamedTuple):
    """Tasks of `tasks`. It changes in one step, so that an exception between two bytecodes loses no task."""

    open: dict[int, Work] = {}  # noqa: RUF012 it is replaced, never changed
    finished: tuple[int, ...] = ()  # not reported
    last: int = 0  # largest id that was open


class _Steps(NamedTuple):
    """Tasks whose finish waits for a step. It changes in one step, as `_Held` does."""

    open: frozenset[int] = frozenset()  # with records that the loop has had since the last step
    unpushed: frozenset[int] = frozenset()  # with records in steps whose gradients the servers may not have


class Optimizer(Protocol):
    """What a client needs of the optimizer of its model on parameter servers."""

    is_async: bool

    @property
    def has_gradients(self) -> bool:
        """Whether there are gradients that are not zero, as of batches since the last step."""

    def flush(self) -> None:
        """Push gradients of steps that wait for others, and wait until the servers have those that are pushed."""


class Task:
    """A task: iterate over it to get its records, each as a memoryview that stays valid as long as it is referenced."""

    def __init__(self, client: Client, work: Work, session: int) -> None:
        """See `Client.tasks`."""
        self._client, self.work, self._session = client, work, session
        self._left = len(self)  # records that no step has applied

    @property
    def pass_(self) -> int:
        """Number of the pass, from 1."""
        return self.work.pass_

    @property
    def index(self) -> int:
        """Number of the task in the dataset, from 0."""
        return self.work.position

    def __len__(self) -> int:
        """Number of records that are to be trained."""
        return max(0, self.work.records - self.work.base)

    def __iter__(self) -> Iterator[memoryview]:
        """Iterate over the records."""
        return itertools.chain.from_iterable(self._parts())

    def _parts(self) -> Iterator[Iterable[memoryview]]:
        """Iterate over the chunks, and return the records of each."""
        skip = self.work.base
        for chunk, following in itertools.zip_longest(self.work.chunks, self.work.chunks[1:]):
            n = int(chunk["records"])
            if skip < n:
                records = self._client._read(chunk, following)
                yield records.take(range(skip, n)) if skip else records
            skip = max(0, skip - n)


class Client:
    """A trainer of a job.

    `addr` is `host:port` of the master; without it, TRAINMASTER_ADDR or TRAINMASTER_ENDPOINTS (of etcd) is used, and without them
    `local` starts a master for this process. `timeout` is the number of seconds after which a call fails if no master answers. `window` is the number
    of tasks that this trainer may hold, 2 to 64.
    """

    def __init__(
        self,
        addr: str | None = None,
        job: str | None = None,
        timeout: float = 600,
        *,
        endpoints: str | Sequence[str] | None = None,
        id: str | None = None,  # noqa: A002
        window: int = WINDOW,
    ) -> None:
        """Join the job. It waits until a master leads."""
        if getattr(multiprocessing.current_process(), "_inheriting", False):  # it imports the script, to have its functions
            raise errors.InvalidError(
                "client: expected `if __name__ == '__main__':` around the training, found none: a worker process imports the script"
            )
        _check.at_most_one(addr=addr, endpoints=endpoints)
        self.timeout = _check.seconds("timeout", timeout)
        window = whole("window", window, LEAST_WINDOW, WINDOW)
        n = next(_numbers)
        has_job, has_id = job not in (None, ""), id not in (None, "")
        self.job = _check.job("job" if has_job else "TRAINMASTER_JOB", job if has_job else os.environ.get("TRAINMASTER_JOB") or "default")
        source, own = _named()
        self.id = _check.trainer("id" if has_id else source, id if has_id else own or f"{socket.gethostname()}-{os.getpid()}-{n}")
        self._arguments, self._environment, where = _location(addr, endpoints)
        self._key = (where, self.job, self.id)
        if self._is_open():
            gc.collect()  # a cycle of references can keep a client that nothing uses
            if self._is_open():
                raise errors.InvalidError(f"trainer {self.id!r}: expected a client of its own, found an open client of this process: close it first")
        self._where = where
        self._arguments += ["--job", self.job, "--id", self.id, "--window", str(window)]
        self._environment.setdefault("TRAINMASTER_LOG_LEVEL", "warning")
        self._held = _Held()
        self._loop = 0  # number of the last loop over `tasks`
        self._given_back: tuple[Work, ...] = ()  # for the next `_fetch`
        self._had_loader = False  # which is closed
        self._on_stopped: Callable[[Sequence[int]], None] = self._drop  # with tasks that the master has taken back; loaders replace it
        self._chunks: Chunks
        self._is_lost = False  # the session has ended: the next request for a task begins another one
        self._is_behind = False  # the loop has tasks of an earlier session, until it asks for others
        self._records_in_hand: int | None = None  # of the batch of a loader, without those that are skipped, or of a task
        self._loader: weakref.ref[Any] | None = None  # the open loader, which has its tasks
        self._on_restart: list[Callable[[], None]] = []  # called in each further session
        self._of_loader: Callable[[], tuple[int, ...]] | None = None  # returns finished tasks of the open loader, too
        self._optimizer: Optimizer | None = None
        self._steps = _Steps()
        self._may_push = True  # what waits for a push
        self._has_asked = False  # for the step to load
        self._has_ended = False  # the job
        self._refusal: dict[str, Any] = {}  # the last reply without a task
        self._while_waiting: Callable[[], bool] | None = None  # called while there is no task; true ends the work of this trainer
        self._has_dataset = False  # this process has named it, or has had a task
        self._warned = time.monotonic()
        self._request: int | None = None  # a request for tasks that is not answered
        self._requested = 0.0  # time of that request
        self.session = 0
        self._restarts = 0
        self.is_closed = False
        self.over = ""
        self._agent = self._start()
        _open[:] = [ref for ref in _open if ref() is not None]
        _open.append(weakref.ref(self))

    _pause = _PAUSE  # seconds of one wait for a task
    _began = 0.0  # time of the begin of the session
    _brief = 0  # sessions in a row that the master has ended soon after their begin
    _flushed = -1  # the last step that this member has saved

    def _has_tasks(self) -> bool:
        """Return whether tasks of this session are in hand, or its loader has numbers of tasks. They are not those of another session."""
        loader = None if self._loader is None else self._loader()
        has = loader is not None and loader.account.has_begun
        return has or self._is_behind or bool(self._held.open or self._held.finished or self._given_back)

    def _is_open(self) -> bool:
        """Whether this process has an open client with the same name, of the same job."""
        return any(c._key == self._key and not c.is_closed for c in (ref() for ref in _open) if c is not None)

    def _start(self) -> Agent:
        agent = started(self._arguments, self._environment, functools.partial(self._await_join, time.monotonic() + self.timeout))
        self.session += 1
        self._began, self._request = time.monotonic(), None
        self._chunks = Chunks(agent.path)
        return agent

    def _await_join(self, end: float, agent: Agent) -> None:
        """Wait until an agent has joined the job, up to a time."""
        while True:
            try:
                ended = has_ended(self._where)  # but another master can have its address
                self._hello = agent.hello(min(_ANSWER if ended else _SLICE, max(0.1, end - time.monotonic())), self.timeout)
                return
            except (errors.OverError, errors.MasterTimeoutError) as e:
                if ended or isinstance(e, errors.OverError):  # as after the restart of the agent
                    self._hello, self.over, self._has_ended = {"job_id": "", "incarnation": 0}, LATE, True
                    note_end(self._where)
                    log.warning("%s: there is nothing to train", self.over)
                    return
                if time.monotonic() >= end:
                    found = f"within {self.timeout:.0f} s, found none"
                    raise errors.MasterTimeoutError(
                        f"master at {self._where}: expected an answer {found}: check the address and that the master runs and leads. "
                        "A job that has ended has no master"
                        if "--addr" in self._arguments
                        else f"etcd at {self._where}: expected the address of a master {found}: check the endpoints, etcd and the master"
                    ) from None
                log.warning("no master answers at %s, waiting. A job that has ended has no master", self._where)

    @property
    def explicit(self) -> bool:
        """Whether tasks count with the commit of a step (`--explicit-commit`)."""
        return bool(self._hello.get("explicit"))

    @property
    def _cuts(self) -> bool:
        """Whether the master takes cuts of data and parameters, to which the job can roll back (`--update-mode sync`)."""
        return bool(self._hello.get("cuts"))

    @property
    def _lost(self) -> tuple[type[Exception], ...]:
        """The errors after which another session must begin."""
        lost: tuple[type[Exception], ...] = (errors.AgentLostError, errors.SessionLostError)
        return lost if self.explicit else (*lost, errors.RolledBackError)

    @property
    def window(self) -> int:
        """Number of tasks that the master lets this trainer hold."""
        return int(self._hello.get("window", WINDOW))

    @property
    def _link(self) -> Link:
        """The main connection to the agent."""
        return self._agent.link

    @property
    def job_id(self) -> str:
        """Id of the job instance."""
        return str(self._hello["job_id"])

    @property
    def _incarnation(self) -> int:
        """Number of this session: unique in the job and growing."""
        return int(self._hello["incarnation"])

    @property
    def _path(self) -> str:
        """Path of the socket of the agent, for other processes of this trainer."""
        return self._agent.path

    @property
    def agent_pid(self) -> int:
        """Process id of the agent."""
        return self._agent.process.pid

    def report_dataset(self, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> None:
        """Name the dataset of the job: paths, globs and URLs. Trainers that repeat it have no effect; another dataset is an error."""
        absolute, has_tasks = [_absolute(p) for p in _check.paths("paths", paths)], self._has_tasks()
        while True:
            try:
                self._call("report", paths=absolute)
                break
            except self._lost:
                self._restart(stays_lost=has_tasks)
        self._has_dataset = True
        note_dataset(self._where)

    def tasks(self) -> Iterator[Task]:
        """Iterate over tasks to the end of the job. A task is finished when the loop asks for the next one.

        A loop that was left is given its last task again.
        """
        self._loop = loop = self._loop + 1
        while True:
            if self._is_lost:
                self._restart()
            try:
                task = self._take()
            except self._lost:
                self._is_lost = True
                continue
            if task is None:
                return
            self._records_in_hand = len(task)
            self._note_use([task.work.id])
            yield task
            if loop != self._loop:
                raise RuntimeError("tasks: expected one loop at a time, found a newer one: end the first loop before the second")
            self._consumed({task.work.id: task.work.records})
            if not self._is_lost:
                self._finish(task)
                self._boundary(self._held.finished)

    def fail(self, task: Task, error: BaseException | str) -> None:
        """Return a task to the queue with a failure. A task that failed more than `--task-max-failures` times (3) is set aside.

        A task that was failed before, or that the master has taken back, is left out.
        """
        self._require_open("fail")
        if not isinstance(error, (BaseException, str)):
            raise TypeError(f"error: expected an exception or a text, found {error!r}")
        if self._is_current(_check.instance("task", task, Task, "a task of tasks()")):
            text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            try:
                self._fail_work(task.work.id, text)
            except self._lost:
                self._is_lost = True  # its tasks return to the queue
            self._drop([task.work.id])

    def _fail_work(self, number: int, text: str) -> None:
        """Return the task with this number to the queue with a failure."""
        self._call("fail", task=number, error=shortened(text))

    def progress(self, records: int, loss: float | None = None) -> None:
        """Report trained records. It extends the deadlines of the tasks in hand. A loss that is not finite is left out."""
        records = whole("records", records, 0)
        value = math.nan if loss is None else _check.number("loss", loss)
        known = {"loss": value} if math.isfinite(value) else {}
        with contextlib.suppress(errors.AgentLostError):  # the next request finds it
            self._link.post("progress", records=records, **known)

    def last_step(self) -> int:
        """Return the step to load, 0 for a new model. With explicit commits; call it before the first task."""
        reply = self._call("last_step")
        self._has_asked = True
        if reply.get("dropped"):
            self._forget_tasks()
        return int(reply.get("step", 0))

    def applied(self, task: Task, step: int, n: int) -> None:
        """Report that a step has applied the next n records of a task. With all its records, the task is finished."""
        number = _check.instance("task", task, Task, "a task of tasks()").work.id
        step, n = whole("step", step, 1), whole("n", n, 0)
        if n > task._left:
            raise errors.InvalidError(f"n: expected at most the {task._left} records of the task that no step has applied, found {n}")
        self._call("applied", task=number, step=step, n=n)
        task._left -= n
        if task._left <= 0:
            self._finish(task)

    def flushed(self, step: int) -> None:
        """Report that this member of the ring has saved its part of a step."""
        step = whole("step", step, 0)
        self._report_finished()
        self._call("flushed", step=step)
        self._flushed = step

    def commit(self, step: int) -> None:
        """Commit a step: its tasks count. It waits until all members have flushed it."""
        step = whole("step", step, 0)
        if self._flushed < step:
            raise errors.InvalidError(f"commit: expected flushed({step}) before it, since all members must have saved the step, found none: call it")
        self._call("commit", step=step)

    def rollback(self, step: int) -> None:
        """Roll the ring back to the last committed step, with the incarnation of this trainer as generation. One member calls it."""
        self._call("rollback", step=whole("step", step, 0))
        self._has_asked = True
        self._forget_tasks()

    def close(self) -> None:
        """Report finished tasks, return the others without a charge, and end the session."""
        if self.is_closed or os.getpid() != self._agent.owner:
            return
        self._report_at_end(limit=_SLICE)
        if is_gone(self._where):
            self._agent.process.kill()  # it would wait for the master, to leave in order
        self.is_closed = True
        self._chunks.close()
        self._agent.close()

    def __reduce__(self) -> Any:
        """Refuse to be copied."""
        raise TypeError("client: expected it in the process that made it, found pickle or copy: make a client in each process")

    def __del__(self) -> None:
        """End the session in order if nothing has closed the client, without a wait: garbage is collected inside of any function."""
        agent = self.__dict__.get("_agent")
        if agent is not None and not self.is_closed:
            self.is_closed = True
            # Gradients that wait for others cannot be pushed here: their tasks return to the queue.
            agent.release(self._unreported())

    def __enter__(self) -> Client:
        """Return the client."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the client."""
        self.close()

    # What follows is for other modules of the package, and for the loop over tasks.

    def _require_open(self, op: str) -> None:
        """Refuse to continue if the client is closed, or of another process."""
        if self.is_closed:
            raise errors.InvalidError(f"{op}: expected an open client, found a closed one")
        self._link.check_owner(op)

    def _call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request to the agent and return its reply. It fails if no master has answered within the timeout."""
        self._require_open(op)
        if self.over == LATE:
            raise errors.OverError(f"{op}: {LATE}")
        end = time.monotonic() + self.timeout
        while True:
            try:
                return self._ask(op, wait=_SLICE, **fields)
            except errors.MasterTimeoutError as e:  # the request is not undone: repeat it
                expected = _EXPECTED.get(op, f"an answer of the master at {self._where}")
                if time.monotonic() >= end:
                    raise errors.MasterTimeoutError(f"{op}: expected {expected} within {self.timeout:.0f} s, found none: {e}") from None
                log.warning("%s: waiting for %s", op, expected)

    def _ask(self, op: str, wait: float, **fields: Any) -> dict[str, Any]:
        """Send a request that the agent answers within `wait` seconds. An agent that does not is stopped, and counts as lost."""
        limit = wait + min(STOPPED, self.timeout)
        try:
            return self._link.call(op, limit, wait=wait, **fields)
        except errors.AgentTimeoutError as e:
            raise self._stopped(op, limit) from e

    def _stopped(self, op: str, limit: float) -> errors.AgentLostError:
        return errors.AgentLostError(f"agent {self.agent_pid}: expected an answer to {op} within {limit:.0f} s, found none: it is stopped")

    def _fetch(self, finished: Sequence[int], want: int, wait: bool, answer: float = _ANSWER) -> list[Work] | None:
        """Return tasks, and report the finished ones. None: the work of this trainer has ended.

        Without `wait`, the list is empty if the master answers that there is no task now, or not within `answer` seconds.

        The caller must call `_forget` with the largest id of the tasks. Until then, the next call returns the same tasks.
        """
        if not self._begin_fetch(finished):
            return None
        link = self._link
        while not self._given_back and not link.tasks:
            self._require_open("next")
            more: dict[str, Any] = {"wait": self._pause} if wait else {"wait": answer, "now": True}
            reply = self._next(lambda: self._ask("next", finished=list(finished), want=want, **more))  # noqa: B023 it is called here
            if self.over or reply is None:
                return None
            if reply.get("tasks"):
                break
            self._check_wait(reply, wait)
            if not wait or (self._while_waiting is not None and self._while_waiting()):
                return None if wait else []
        self._restarts, self._has_dataset = 0, True
        return self._ready()

    def _fetch_next(self, finished: Callable[[bool], tuple[int, ...]], want: int, wait: bool) -> tuple[list[Work] | None, tuple[int, ...]]:
        """Return tasks as `_fetch` does, and the finished tasks that it has reported.

        `finished` returns those whose gradients are pushed, or all: they are reported if a master answers that there is no other task, since no
        step may follow.
        """
        if self.over:
            return None, ()
        reported = finished(False)
        waits = wait and finished(True) != reported
        works = self._fetch(reported, want, wait and not waits, _SLICE if waits else _ANSWER)
        while waits and works == [] and not self._has_no_task:  # a master that is away can have another task
            self._check_wait(self._refusal, wait)
            stops = self._while_waiting is not None and self._while_waiting()
            works = None if stops else self._fetch(reported, want, False, _SLICE)
        if waits and works == []:
            self._end_steps()
            reported = finished(True)
            works = self._fetch(reported, want, wait)
        return works, reported

    @property
    def _has_no_task(self) -> bool:
        """Whether a master has answered that it has no task now."""
        return bool(self._refusal.get("answered"))

    def _end_steps(self) -> None:
        """Let tasks finish without a step: there is no other task. Raise an error if the window is full, and a step could have their gradients."""
        optimizer = self._optimizer
        if optimizer is None or not optimizer.is_async:
            return
        if self._refusal.get("wait") == "window" and optimizer.has_gradients:
            raise errors.InvalidError(
                f"step: expected one for the records of at most {self.window} tasks, the window of this trainer, found none: "
                "make steps for fewer batches, or a job with larger tasks (--chunks-per-task). Without training, call zero_grad()"
            )
        optimizer.flush()

    def _finished(self, is_last: bool) -> tuple[int, ...]:
        """Return finished tasks of `tasks` that are not reported. A step must have their records, but if no step follows (`is_last`)."""
        return self._held.finished if is_last else self._stepped(self._held.finished)

    def _fetch_soon(self, finished: Sequence[int], want: int, limit: float) -> list[Work] | None:
        """Return tasks as `_fetch` does, and none if none has come within `limit` seconds. The request goes on, and the next call has its tasks."""
        if not self._begin_fetch(finished):
            return None
        link = self._link
        if not self._given_back and not link.tasks:
            if self._request is None:
                self._requested, self._request = time.monotonic(), link.begin("next", finished=list(finished), want=want, wait=_SLICE)
            elif finished:
                link.post("finish", finished=list(finished))
            number = self._request
            reply = self._next(lambda: link.poll(number, limit))
            if self.over:
                return None
            limit = _SLICE + min(STOPPED, self.timeout)
            if reply is None and time.monotonic() - self._requested > limit:
                raise self._stopped("next", limit)
            if reply is not None:
                self._request = None
                if not reply.get("tasks"):
                    self._check_wait(reply, wait=True)
        works = self._ready()
        if works:
            self._restarts = 0
        return works

    def _ready(self) -> list[Work]:
        return [*self._given_back, *map(Work.parse, self._link.tasks)]

    def _give_back(self, works: Sequence[Work]) -> None:
        """Give tasks to the next `_fetch`, in the order of their ids: the loader that has them is closed."""
        self._given_back = () if self.is_closed or self._is_lost else tuple(works)
        self._had_loader, self._pause = True, _PAUSE
        self._loader, self._while_waiting, self._on_stopped, self._of_loader = None, None, self._drop, None

    def _hand_over(self) -> None:
        """Give the tasks of `tasks` to a loader."""
        held = self._held
        if finished := self._stepped(held.finished):
            with contextlib.suppress(errors.AgentLostError):  # the next request finds it
                self._post("finish", finished=list(finished))
        if held.open:
            self._given_back = tuple(held.open.values())
        self._link.forget(held.last)
        self._held = _Held(finished=tuple(t for t in held.finished if t not in finished))

    def _unreported(self) -> tuple[int, ...]:
        """Return finished tasks that are not reported, also of the open loader. A step must have their records."""
        return self._finished(False) if self._of_loader is None else self._of_loader()

    def _stepped(self, tasks: Iterable[int]) -> tuple[int, ...]:
        """Return those of some tasks whose records have all been in a step that the servers have. If steps wait for a push, push them."""
        optimizer = self._optimizer
        if optimizer is None or not optimizer.is_async:
            return tuple(tasks)
        found = tuple(t for t in tasks if t not in self._steps.open)
        if self._may_push and not self.is_closed and any(t in self._steps.unpushed for t in found):
            optimizer.flush()
        return () if self._is_lost else tuple(t for t in found if t not in self._steps.open and t not in self._steps.unpushed)

    def _note_use(self, tasks: Iterable[int]) -> None:
        """Note that the loop has records of tasks. With an optimizer of an asynchronous job, they finish with a step."""
        # An optimizer that is made before the next batch has the gradients of this one.
        before = self._steps.open if self._optimizer is not None and self._optimizer.is_async else frozenset()
        self._steps = self._steps._replace(open=before.union(tasks))

    def _note_step(self) -> None:
        """Note that a step has the gradients of all batches that the loop has had. The servers may not have them."""
        loader = None if self._loader is None else self._loader()
        # Between two passes, the loader has read a batch that the loop has not.
        ahead = loader.account.flight[:1] if loader is not None and loader._is_ahead else ()
        s = self._steps
        self._steps = _Steps(frozenset(task for batch in ahead for task in batch.counts), s.unpushed | s.open)

    def _note_pushed(self, is_applied: bool = True) -> None:
        """Note that the servers have the gradients of all steps, or that they refused them: then their tasks wait for another step."""
        s = self._steps
        self._steps = _Steps(s.open if is_applied else s.open | s.unpushed)

    def _report_at_end(self, limit: float | None = None) -> None:
        """Report finished tasks, unless the session or the job has ended. An error is for the log: the tasks return to the queue."""
        if self.is_closed or self._is_lost or self._has_ended or not self._agent.is_alive():
            return
        before = self.timeout
        self.timeout = before if limit is None else min(before, limit)
        try:
            try:
                finished = self._unreported()
            except (errors.Error, TimeoutError) as e:
                log.warning("gradients at the end were not pushed, and their tasks return to the queue: %s", e)
                self._may_push = False
                finished = self._unreported()
            if finished:
                self._call("finish", finished=list(finished))
                self._reported(finished)
        except (errors.Error, TimeoutError) as e:
            log.warning("finished tasks at the end: %s", e)
        finally:
            self.timeout, self._may_push = before, True

    def _begin_fetch(self, finished: Sequence[int]) -> bool:
        """Return whether the job continues. If a late reply has brought tasks, no request follows: the finished ones are reported here."""
        if self.over:
            return False
        if self._is_lost:
            raise errors.SessionLostError("the session has ended")
        if self.explicit and not self._has_asked:
            raise errors.InvalidError("tasks: expected rollback(last_step()) before the first task, or restore() of checkpoints, found none: call it")
        if not self._has_dataset and lacks_dataset(self._where):
            raise errors.InvalidError(
                "paths: expected the dataset, found none, and no other process can name it: give paths=, or call report_dataset()"
            )
        if (self._given_back or self._link.tasks) and finished:
            self._link.post("finish", finished=list(finished))
        return True

    def _ask_again(self) -> None:
        """Give up the request of `_fetch_soon`: its reply would be of the time before a commit."""
        if self._request is not None:
            self._link.give_up(self._request)
        self._request = None

    def _next(self, request: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
        """Return the reply to a request for tasks, and note what it says besides."""
        try:
            reply = request()
        except errors.OverError as e:
            self._end(str(e))
            return None
        except errors.DrainedError:
            self._note_drain()
            return None
        if reply is not None:
            self._refusal = {} if reply.get("tasks") else reply
            if over := reply.get("over"):
                self._end(over)
            elif reply.get("wait") == "drain":
                self._note_drain()
                return None
            elif stopped := reply.get("stopped"):
                self._on_stopped(stopped)
        return reply

    def _note_drain(self) -> None:
        log.warning("an operator ended the work of this trainer (drain)")
        self.over = DRAINED

    def _end(self, reason: str = "") -> None:
        """Note that the job has ended. A reason other than the end of the passes is for the user: a target, or tasks that are set aside."""
        if self.over:
            return
        self._has_ended = True
        self.over = reason or ENDED
        note_end(self._where)
        if self.over != ENDED:
            log.warning("the job has ended: %s", self.over)

    def _check_wait(self, reply: dict[str, Any], wait: bool) -> None:
        """Raise the error for the reason why a reply has no tasks, or warn if no master answers."""
        reason, silent = reply.get("wait"), float(reply.get("silent") or 0)
        if reason == "commit" and wait:
            raise errors.CommitFirstError("no further task before a commit: save the model and call commit")
        if reason == "rollback":
            raise errors.RollbackFirstError("a task of the ring has failed, or a member was lost with one: roll back to the last committed step")
        if reason == "task" and wait and not self._has_dataset:
            self._warn("no task: other trainers have all tasks, or the job has no dataset: name its files with paths= or report_dataset()")
        if silent and wait:
            if silent >= self.timeout:
                raise errors.MasterTimeoutError(
                    f"master at {self._where}: expected an answer within {self.timeout:.0f} s, found none for {silent:.0f} s: "
                    "start a master of this job"
                )
            self._warn("no answer of a master at %s for %.0f s, waiting", self._where, silent)

    def _warn(self, text: str, *values: object) -> None:
        """Write a warning, once in some time."""
        if time.monotonic() - self._warned >= _SLICE:
            self._warned = time.monotonic()
            log.warning(text, *values)

    def _commands(self, evaluates: bool) -> tuple[bool, list[Work]]:
        """Return whether an operator drains this trainer, and the evaluations that the master wants, if it `evaluates` on command."""
        if self.over == LATE:
            return False, []
        reply = self._ask("commands", wait=_SLICE, evaluates=evaluates)
        return bool(reply["stop"]), [Work.parse(t) for t in reply["evaluate"]]

    def _drop(self, tasks: Sequence[int]) -> None:
        h = self._held
        self._held = h._replace(open={k: w for k, w in h.open.items() if k not in tasks})
        self._given_back = tuple(w for w in self._given_back if w.id not in tasks)

    def _consumed(self, used: dict[int, int]) -> None:
        """Note how many records of tasks are trained, from the beginning of each."""
        if self._cuts and not self._is_lost:
            try:
                self._link.post("used", used=list(used.items()))
            except errors.AgentLostError:
                self._is_lost = True

    def _boundary(self, finished: Sequence[int]) -> None:
        """Wait while the master takes a cut: all that is trained is in the parameters."""
        if not self._cuts or self._is_lost or self.over:
            return
        try:
            if finished:
                self._link.post("finish", finished=list(finished))
            self._call("boundary")
        except errors.OverError as e:
            self._end(str(e))
        except self._lost:
            self._is_lost = True

    def _begin(self, op: str, **fields: Any) -> int:
        """Send a request, and return its number for `_poll`."""
        return self._link.begin(op, wait=_SLICE, **fields)

    def _poll(self, number: int) -> bool:
        """Whether the reply to a request of `_begin` has come. MasterTimeoutError: send it again."""
        return self._link.poll(number) is not None

    def _post(self, op: str, **fields: Any) -> None:
        """Send a request without a reply. It takes effect before the next request."""
        self._link.post(op, **fields)

    def _forget(self, last: int) -> None:
        """Drop the tasks up to this id from the next `_fetch`: the caller has them."""
        self._given_back = tuple(w for w in self._given_back if w.id > last)
        self._link.forget(last)

    def _read(self, chunk: Any, following: Any) -> Records:
        """Return the records of a chunk. Meanwhile, the agent reads the following one."""
        self._require_open("task")
        try:
            return self._chunks.read(chunk, following)
        except self._lost:
            self._is_lost = True  # the next task is of another session
            raise

    def _report_finished(self, tasks: Sequence[int] = ()) -> None:
        """Report finished tasks, and wait until they are stored."""
        finished = [*self._held.finished, *tasks]
        if finished:
            self._call("finish", finished=finished)
            self._reported(finished)

    def _reported(self, tasks: Sequence[int]) -> None:
        h = self._held
        self._held = h._replace(finished=tuple(t for t in h.finished if t not in tasks))

    def _restart(self, *, stays_lost: bool = False) -> None:
        """Start another agent with a new session, after the agent or the session was lost. All tasks are dropped.

        `stays_lost`: the loop has tasks of an earlier session. It begins a further one with its next batch, and nothing finishes the tasks before.
        """
        if self.is_closed:
            raise errors.AgentLostError("the agent has ended, and the client is closed")
        if self.explicit:
            raise errors.RolledBackError(MEMBER_LOST)
        if self._restarts >= _RESTARTS:
            raise errors.AgentError(  # no other session begins after it
                f"agent: expected it to run, found {self._restarts} ends without a task between them: its messages are on standard error"
            )
        self._brief = self._brief + 1 if self._link.is_session_lost and time.monotonic() - self._began < _BRIEF else 0
        if self._brief == _MOST_BRIEF:
            raise errors.InvalidError(
                f"trainer {self.id!r}: expected a name of its own, found another trainer with it, since {self._brief} sessions in a row ended within "
                f"{_BRIEF:.0f} s: give each trainer a name of its own, with TRAINMASTER_ID or id="
            )
        self._is_lost = True  # until its end: after an exception in it, another session begins
        log.warning("the agent or its session was lost: starting another one")
        self._agent.close(in_order=False)
        if self._agent.process.returncode:  # otherwise it has ended with its session, as after a rollback
            self._restarts += 1
        self._steps = _Steps()
        self._is_behind = stays_lost  # also after an exception in what follows
        self._held, self._given_back = _Held(), ()
        self._agent = self._start()
        try:
            for f in self._on_restart:
                f()
        except self._lost:
            self._restart(stays_lost=stays_lost)
        self._is_lost = stays_lost

    def _forget_tasks(self) -> None:
        self._held, self._given_back = _Held(last=self._held.last), ()

    def _is_current(self, task: Task) -> bool:
        return task._session == self.session and task.work.id in self._held.open

    def _take(self) -> Task | None:
        if not self._held.open:
            self._forget(self._held.last)
            works, finished = self._fetch_next(self._finished, 1, wait=True)
            self._reported(finished)
            if works is None:
                return None
            self._held = self._held._replace(open={w.id: w for w in works}, last=works[-1].id)
        return Task(self, next(iter(self._held.open.values())), self.session)

    def _finish(self, task: Task) -> None:
        if self._is_current(task):
            h, number = self._held, task.work.id
            self._held = h._replace(open={k: w for k, w in h.open.items() if k != number}, finished=(*h.finished, number))


@atexit.register
def _close_all() -> None:
    """Close the clients of this process at its end, after `Checkpoints`, which register later."""
    for client in [ref() for ref in _open]:
        if client is not None:
            client.close()
    await_released()


def shared() -> Client:
    """Return the open client of this process. If there is none, make one, which the next loader without a client uses."""
    found = [c for c in (ref() for ref in _open) if c is not None and not c.is_closed]
    if len(found) > 1:
        raise errors.InvalidError(f"client: expected one open client in this process, found {len(found)}: name one with client=")
    if not found:
        _waiting.append(Client())
        found = _waiting[-1:]
    return found[0]


def waiting() -> Client | None:
    """Return and forget the client that `shared` has made."""
    return _waiting.pop() if _waiting and not _waiting[-1].is_closed else None


def shortened(text: str) -> str:
    """Return the part of an error that the master keeps."""
    return text.encode()[:_ERROR_BYTES].decode(errors="ignore")


def _absolute(name: str) -> str:
    return name if _URL.match(name) else os.path.abspath(name)


def _named() -> tuple[str, str]:
    """Return a variable, and the name of this trainer in it; "": none. torchrun gives its variables to all programs of a node."""
    source = "TRAINMASTER_TRAINER" if os.environ.get("TRAINMASTER_TRAINER") else "TRAINMASTER_ID"
    name, rank = os.environ.get(source, ""), os.environ.get("LOCAL_RANK")
    return source, f"{name}-{rank}" if name and rank else name


def _location(addr: str | None, endpoints: str | Sequence[str] | None) -> tuple[list[str], dict[str, str], str]:
    """Return flags and environment of the agent, and the address for messages."""
    own = {"TRAINMASTER_TRAINER", "TRAINMASTER_BIN", "TRAINMASTER_ADDR", "TRAINMASTER_ENDPOINTS", "TRAINMASTER_JOB", "TRAINMASTER_ID"}
    environment = {k: v for k, v in os.environ.items() if k not in own}
    name = "addr"
    if addr is None and endpoints is None:
        endpoints = os.environ.get("TRAINMASTER_ENDPOINTS")  # they name the master, too, and the parameter servers
        addr, name = None if endpoints else os.environ.get("TRAINMASTER_ADDR"), "TRAINMASTER_ADDR"
    if not addr and not endpoints:
        addr = for_this_process()
    if addr:
        return ["--addr", _check.address(name, addr)], environment, addr
    name = "TRAINMASTER_ENDPOINTS" if endpoints == os.environ.get("TRAINMASTER_ENDPOINTS") else "endpoints"
    found = (
        endpoints.split(",") if isinstance(endpoints, str) else list(_check.several(name, endpoints or (), "host:port of etcd, or a list of them"))
    )
    for e in found:
        _check.address(name, re.sub(r"^https?://|/$", "", e) if isinstance(e, str) else e)
    joined = ",".join(found)
    return ["--endpoints", joined], environment, joined
