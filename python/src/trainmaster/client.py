"""The client of a job: tasks and their records, one after the other. loader.py and torch have loaders of batches."""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import logging
import math
import os
import re
import socket
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from . import errors
from ._agent import Agent, Chunks
from ._check import whole
from ._link import Link
from .account import Work

log = logging.getLogger("trainmaster")

WINDOW = 64  # tasks that a trainer may hold
DRAINED = "an operator drains this trainer"
_MIN_WINDOW = 2  # of a session: one task is requested while another one is trained
_SLICE = 10.0  # seconds between messages while no master answers
_PAUSE = 1.0  # seconds between looks for commands, while there is no task
_ANSWER = 1.0  # seconds to wait for the answer that there is no task now
_ERROR_BYTES = 256  # of the text with which a task fails
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_RESTARTS = 5  # of the agent, without a task between them

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


class Task:
    """A task: iterate over it to get its records, each as a memoryview that stays valid as long as it is referenced."""

    def __init__(self, client: Client, work: Work, session: int) -> None:
        """See `Client.tasks`."""
        self._client, self.work, self._session = client, work, session

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
        skip = self.work.base
        for chunk in self.work.chunks:
            n = int(chunk["records"])
            if skip < n:
                yield from self._client.read(chunk)[skip:]
            skip = max(0, skip - n)


class Client:
    """A trainer of a job.

    `addr` is `host:port` of the master; without it, TRAINMASTER_ADDR or TRAINMASTER_ENDPOINTS (of etcd) is used, and without them
    `local` starts a master for this process. `timeout` is the number of seconds after which a call fails if no master answers. `window` is the number
    of tasks that this trainer may hold, 1 to 64.
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
        if not timeout > 0:
            raise ValueError(f"timeout: expected more than 0 seconds, found {timeout}")
        window = whole("window", window, 1, WINDOW)
        for name, value in (("job", job), ("id", id)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name}: expected a name, found {value!r}")
        self.timeout = timeout
        self.job = job or os.environ.get("TRAINMASTER_JOB") or "default"
        self._arguments, self._environment, where = _location(addr, endpoints)
        n = next(_numbers)
        self.id = id or _named() or f"{socket.gethostname()}-{os.getpid()}-{n}"
        self._key = (where, self.job, self.id)
        if self._is_open():
            gc.collect()  # a cycle of references can keep a client that nothing uses
            if self._is_open():
                raise errors.InvalidError(f"trainer {self.id!r}: expected a client of its own, found an open client of this process: close it first")
        self._where = where
        self._arguments += ["--job", self.job, "--id", self.id, "--window", str(max(window, _MIN_WINDOW))]
        self._environment.setdefault("TRAINMASTER_LOG_LEVEL", "warning")
        self._held = _Held()
        self.on_stopped: Callable[[Sequence[int]], None] = self._drop  # with tasks that the master has taken back; loaders replace it
        self._chunks: Chunks
        self.is_lost = False  # the session has ended: the next request for a task begins another one
        self.records_in_hand: int | None = None  # of the batch of a loader, without those that are skipped, or of a task
        self.loader: weakref.ref[Any] | None = None  # the open loader, which has its tasks
        self.on_restart: list[Callable[[], None]] = []  # called in each further session
        self.before_finish: Callable[[], None] | None = None  # called before tasks finish
        self.while_waiting: Callable[[], bool] | None = None  # called while there is no task; true ends the work of this trainer
        self._warned = 0.0
        self._request: int | None = None  # a request for tasks that is not answered
        self.session = 0
        self.restarts = 0
        self.is_closed = False
        self.over = ""
        self._agent = self._start()
        _open[:] = [ref for ref in _open if ref() is not None]
        _open.append(weakref.ref(self))
        this = weakref.ref(self)
        atexit.register(_close, this)

    def _is_open(self) -> bool:
        """Whether this process has an open client with the same name, of the same job."""
        return any(c._key == self._key and not c.is_closed for c in (ref() for ref in _open) if c is not None)

    def _start(self) -> Agent:
        agent = Agent(self._arguments, self._environment)
        end = time.monotonic() + self.timeout
        try:
            while True:
                try:
                    self.hello = agent.hello(min(_SLICE, max(0.1, end - time.monotonic())))
                    break
                except errors.OverError:  # as after its restart
                    self.hello, self.over = {"job_id": "", "incarnation": 0}, "the job ended before this trainer joined"
                    log.warning("%s: there is nothing to train", self.over)
                    break
                except errors.MasterTimeoutError:
                    if time.monotonic() >= end:
                        raise errors.MasterTimeoutError(
                            f"master at {self._where}: expected an answer within {self.timeout:.0f} s, found none: "
                            "check the address and that the master runs"
                        ) from None
                    log.warning("no master answers at %s, waiting", self._where)
        except BaseException:
            agent.close(in_order=False)
            raise
        self.session += 1
        self._request = None
        self._chunks = Chunks(agent.path)
        return agent

    @property
    def explicit(self) -> bool:
        """Whether tasks count with the commit of a step (`--explicit-commit`)."""
        return bool(self.hello.get("explicit"))

    @property
    def cuts(self) -> bool:
        """Whether the master takes cuts of data and parameters, to which the job can roll back (`--update-mode sync`)."""
        return bool(self.hello.get("cuts"))

    @property
    def lost(self) -> tuple[type[Exception], ...]:
        """The errors after which another session must begin."""
        lost: tuple[type[Exception], ...] = (errors.AgentLostError, errors.SessionLostError)
        return (*lost, errors.RolledBackError) if self.cuts else lost

    @property
    def window(self) -> int:
        """Number of tasks that the master lets this trainer hold."""
        return int(self.hello.get("window", WINDOW))

    @property
    def link(self) -> Link:
        """The main connection to the agent."""
        return self._agent.link

    @property
    def job_id(self) -> str:
        """Id of the job instance."""
        return str(self.hello["job_id"])

    @property
    def incarnation(self) -> int:
        """Number of this session: unique in the job and growing."""
        return int(self.hello["incarnation"])

    @property
    def path(self) -> str:
        """Path of the socket of the agent, for other processes of this trainer."""
        return self._agent.path

    @property
    def agent_pid(self) -> int:
        """Process id of the agent."""
        return self._agent.process.pid

    def report_dataset(self, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> None:
        """Name the dataset of the job: paths, globs and URLs. Trainers that repeat it have no effect; another dataset is an error."""
        names = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not names:
            raise ValueError("paths: expected at least one path, found none")
        self.call("report", paths=[_absolute(os.fspath(p)) for p in names])

    def tasks(self) -> Iterator[Task]:
        """Iterate over tasks to the end of the job. A task is finished when the loop asks for the next one.

        A loop that was left is given its last task again.
        """
        while True:
            try:
                task = self._take()
            except self.lost:
                self.restart()
                continue
            if task is None:
                return
            self.records_in_hand = len(task)
            yield task
            self.consumed({task.work.id: task.work.records}, ends=True)
            if self.is_lost:
                self.restart()
                continue
            self._finish(task)
            self.boundary(self._held.finished)

    def fail(self, task: Task, error: BaseException | str) -> None:
        """Return a task to the queue with a failure. A task that failed more than `--task-max-failures` times (3) is set aside."""
        if self._is_current(task):
            self.fail_work(task.work.id, error if isinstance(error, str) else f"{type(error).__name__}: {error}")
            self._drop([task.work.id])

    def fail_work(self, number: int, text: str) -> None:
        """Do the same with the number of a task."""
        self.call("fail", task=number, error=shortened(text))

    def progress(self, records: int, loss: float | None = None) -> None:
        """Report trained records. It extends the deadlines of the tasks in hand. A loss that is not finite is left out."""
        records = whole("records", records, 0)
        known = {"loss": float(loss)} if loss is not None and math.isfinite(loss) else {}
        with contextlib.suppress(errors.AgentLostError):  # the next request finds it
            self.link.post("progress", records=records, **known)

    def last_step(self) -> int:
        """Return the step to load, 0 for a new model. With explicit commits; call it before the first task."""
        reply = self.call("last_step")
        if reply.get("dropped"):
            self._forget_tasks()
        return int(reply.get("step", 0))

    def applied(self, task: Task | int, step: int, n: int) -> None:
        """Report that a step has applied the next n records of a task."""
        self.call("applied", task=task if isinstance(task, int) else task.work.id, step=whole("step", step, 0), n=whole("n", n, 0))

    def flushed(self, step: int) -> None:
        """Report that this member of the ring has saved its part of a step."""
        step = whole("step", step, 0)
        self.report_finished()
        self.call("flushed", step=step)

    def commit(self, step: int) -> None:
        """Commit a step: its tasks count. It waits until all members have flushed it."""
        self.call("commit", step=whole("step", step, 0))

    def rollback(self, step: int) -> None:
        """Roll the ring back to the last committed step, with the incarnation of this trainer as generation. One member calls it."""
        self.call("rollback", step=whole("step", step, 0))
        self._forget_tasks()

    def close(self) -> None:
        """Report finished tasks, return the others without a charge, and end the session."""
        if self.is_closed or os.getpid() != self._agent.owner:
            return
        if self._held.finished and self._agent.is_alive() and not self.over:
            try:
                self.link.call("finish", timeout=_SLICE, wait=_SLICE, finished=list(self._held.finished))
            except (errors.Error, TimeoutError) as e:
                log.warning("finished tasks at the end: %s", e)
        self.is_closed = True
        self._agent.close()

    def __enter__(self) -> Client:
        """Return the client."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the client."""
        self.close()

    # What follows is for loaders.

    def require_open(self, op: str) -> None:
        """Refuse to continue if the client is closed."""
        if self.is_closed:
            raise errors.InvalidError(f"{op}: expected an open client, found a closed one")

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request to the agent and return its reply. It fails if no master has answered within the timeout."""
        self.require_open(op)
        end = time.monotonic() + self.timeout
        while True:
            try:
                return self.link.call(op, wait=_SLICE, **fields)
            except errors.MasterTimeoutError as e:  # the request is not undone: repeat it
                expected = _EXPECTED.get(op, f"an answer of the master at {self._where}")
                if time.monotonic() >= end:
                    raise errors.MasterTimeoutError(f"{op}: expected {expected} within {self.timeout:.0f} s, found none: {e}") from None
                log.warning("%s: waiting for %s", op, expected)

    def fetch(self, finished: Sequence[int], want: int, wait: bool) -> list[Work] | None:
        """Return tasks, and report the finished ones. Without `wait`: none, if there is none now. None: the job has ended.

        The caller must call `forget` with the largest id of the tasks. Until then, the next call returns the same tasks.
        """
        if not self._begin_fetch(finished):
            return None
        link = self.link
        while not link.tasks:
            self.require_open("next")
            more: dict[str, Any] = {"wait": _PAUSE} if wait else {"wait": _ANSWER, "now": True}
            reply = self._next(lambda: link.call("next", finished=list(finished), want=want, **more))  # noqa: B023 it is called here
            if self.over or reply is None:
                return None
            if reply.get("tasks"):
                break
            self._check_wait(reply, wait)
            if not wait or (self.while_waiting is not None and self.while_waiting()):
                return None if wait else []
        self.restarts = 0
        return [Work.parse(t) for t in link.tasks]

    def fetch_soon(self, finished: Sequence[int], want: int, limit: float) -> list[Work] | None:
        """Do the same, and return none if none has come within `limit` seconds. The request goes on, and the next call has its tasks."""
        if not self._begin_fetch(finished):
            return None
        link = self.link
        if not link.tasks:
            if self._request is None:
                self._request = link.begin("next", finished=list(finished), want=want, wait=_SLICE)
            elif finished:
                link.post("finish", finished=list(finished))
            number = self._request
            reply = self._next(lambda: link.poll(number, limit))
            if self.over:
                return None
            if reply is not None:
                self._request = None
                if not reply.get("tasks"):
                    self._check_wait(reply, wait=True)
        self.restarts = 0
        return [Work.parse(t) for t in link.tasks]

    def _begin_fetch(self, finished: Sequence[int]) -> bool:
        """Return whether the job continues. If a late reply has brought tasks, no request follows: the finished ones are reported here."""
        if self.over:
            return False
        if self.is_lost:
            raise errors.SessionLostError("the session has ended")
        if self.link.tasks and finished:
            self.link.post("finish", finished=list(finished))
        return True

    def ask_again(self) -> None:
        """Give up the request of `fetch_soon`: its reply would be of the time before a commit."""
        if self._request is not None:
            self.link.give_up(self._request)
        self._request = None

    def _next(self, request: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
        """Return the reply to a request for tasks, and note what it says besides."""
        try:
            reply = request()
        except errors.OverError as e:
            self.over = str(e) or "the job has ended"
            return None
        except errors.DrainedError:
            log.warning("an operator ended the work of this trainer (drain)")
            self.over = DRAINED
            return None
        if reply is not None:
            self.over = reply.get("over") or ""
            if not self.over and (stopped := reply.get("stopped")):
                self.on_stopped(stopped)
        return reply

    def _check_wait(self, reply: dict[str, Any], wait: bool) -> None:
        """Raise the error for the reason why a reply has no tasks, or warn if no master answers."""
        reason, silent = reply.get("wait"), float(reply.get("silent") or 0)
        if reason == "commit" and wait:
            raise errors.CommitFirstError("no further task before a commit: save the model and call commit")
        if reason == "rollback":
            raise errors.RollbackFirstError("a member of the ring was lost with a task: call rollback")
        if silent and wait:
            if silent >= self.timeout:
                raise errors.MasterTimeoutError(
                    f"master at {self._where}: expected an answer within {self.timeout:.0f} s, found none for {silent:.0f} s: "
                    "start a master of this job"
                )
            if time.monotonic() - self._warned >= _SLICE:
                self._warned = time.monotonic()
                log.warning("no answer of a master at %s for %.0f s, waiting", self._where, silent)

    def commands(self, evaluates: bool) -> tuple[bool, list[Work]]:
        """Return whether an operator drains this trainer, and the evaluations that the master wants, if it `evaluates` on command."""
        reply = self.link.call("commands", evaluates=evaluates)
        return bool(reply["stop"]), [Work.parse(t) for t in reply["evaluate"]]

    def _drop(self, tasks: Sequence[int]) -> None:
        h = self._held
        self._held = h._replace(open={k: w for k, w in h.open.items() if k not in tasks})

    def consumed(self, used: dict[int, int], ends: bool) -> None:
        """Note how many records of tasks are trained, from the beginning of each. `ends`: tasks finish by it."""
        if ends and self.before_finish is not None:
            self.before_finish()
        if self.cuts and not self.is_lost:
            try:
                self.link.post("used", used=list(used.items()))
            except errors.AgentLostError:
                self.is_lost = True

    def boundary(self, finished: Sequence[int]) -> None:
        """Wait while the master takes a cut: all that is trained is in the parameters."""
        if not self.cuts or self.is_lost or self.over:
            return
        try:
            if finished:
                self.link.post("finish", finished=list(finished))
            self.call("boundary")
        except errors.OverError as e:
            self.over = str(e) or "the job has ended"
        except self.lost:
            self.is_lost = True

    def begin(self, op: str, **fields: Any) -> int:
        """Send a request, and return its number for `poll`."""
        return self.link.begin(op, wait=_SLICE, **fields)

    def poll(self, number: int) -> bool:
        """Whether the reply to a request of `begin` has come. MasterTimeoutError: send it again."""
        return self.link.poll(number) is not None

    def post(self, op: str, **fields: Any) -> None:
        """Send a request without a reply. It takes effect before the next request."""
        self.link.post(op, **fields)

    def forget(self, last: int) -> None:
        """Drop the tasks up to this id from the next `fetch`: the caller has them."""
        self.link.forget(last)

    def read(self, chunk: Any) -> list[memoryview]:
        """Return the records of a chunk."""
        return self._chunks.read(chunk)

    def report_finished(self, tasks: Sequence[int] = ()) -> None:
        """Report finished tasks, and wait until they are stored."""
        finished = [*self._held.finished, *tasks]
        if finished:
            self.call("finish", finished=finished)
            self._reported(finished)

    def _reported(self, tasks: Sequence[int]) -> None:
        h = self._held
        self._held = h._replace(finished=tuple(t for t in h.finished if t not in tasks))

    def restart(self) -> None:
        """Start another agent with a new session, after the agent or the session was lost. All tasks are dropped."""
        if self.is_closed:
            raise errors.AgentLostError("the agent has ended, and the client is closed")
        if self.explicit:
            raise errors.RolledBackError("the session of this member was lost: begin again from the last step")
        if self.restarts >= _RESTARTS:
            raise errors.AgentLostError(
                f"agent: expected it to run, found {self.restarts} ends without a task between them: its messages are on standard error"
            )
        self.restarts += 1
        self.is_lost = True  # until its end: after an exception in it, another session begins
        log.warning("the agent or its session was lost: starting another one")
        self._agent.close(in_order=False)
        self._held = _Held()
        self._agent = self._start()
        try:
            for f in self.on_restart:
                f()
        except self.lost:
            self.restart()
        self.is_lost = False

    def _forget_tasks(self) -> None:
        self._held = _Held(last=self._held.last)

    def _is_current(self, task: Task) -> bool:
        return task._session == self.session and task.work.id in self._held.open

    def _take(self) -> Task | None:
        if not self._held.open:
            self.forget(self._held.last)
            finished = self._held.finished
            works = self.fetch(finished, 1, wait=True)
            self._reported(finished)
            if works is None:
                return None
            self._held = self._held._replace(open={w.id: w for w in works}, last=works[-1].id)
        return Task(self, next(iter(self._held.open.values())), self.session)

    def _finish(self, task: Task) -> None:
        if self._is_current(task):
            h, number = self._held, task.work.id
            self._held = h._replace(open={k: w for k, w in h.open.items() if k != number}, finished=(*h.finished, number))


def _close(client: weakref.ref[Client]) -> None:
    if (c := client()) is not None:
        c.close()


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


def _named() -> str:
    """Return the name of this trainer from the environment. torchrun gives its variables to all programs of a node."""
    name = os.environ.get("TRAINMASTER_TRAINER") or os.environ.get("TRAINMASTER_ID") or ""
    rank = os.environ.get("LOCAL_RANK")
    return f"{name}-{rank}" if name and rank else name


def _location(addr: str | None, endpoints: str | Sequence[str] | None) -> tuple[list[str], dict[str, str], str]:
    """Return flags and environment of the agent, and the address for messages."""
    own = {"TRAINMASTER_TRAINER", "TRAINMASTER_BIN", "TRAINMASTER_ADDR", "TRAINMASTER_ENDPOINTS", "TRAINMASTER_JOB", "TRAINMASTER_ID"}
    environment = {k: v for k, v in os.environ.items() if k not in own}
    name = "addr"
    if addr is None and endpoints is None:
        endpoints = os.environ.get("TRAINMASTER_ENDPOINTS")  # they name the master, too, and the parameter servers
        addr, name = None if endpoints else os.environ.get("TRAINMASTER_ADDR"), "TRAINMASTER_ADDR"
    if not addr and not endpoints:
        from .local import for_this_process  # noqa: PLC0415

        addr = for_this_process()
    if addr:
        if not isinstance(addr, str) or not re.search(r".:[^:]+$", addr):
            raise errors.InvalidError(f"{name}: expected host:port, found {addr!r}")
        return ["--addr", addr], environment, addr
    joined = endpoints if isinstance(endpoints, str) else ",".join(endpoints or ())
    return ["--endpoints", joined], environment, joined
