"""The agent: `trainmaster agent`, a child of this process that is its client of the job. docs/formats/agent.md has the protocol."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import logging
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from . import errors
from ._link import FEWER, Link, Records
from ._version import MASTER, VERSION

log = logging.getLogger("trainmaster")

PROTOCOL = 1
STOPPED = 60.0  # seconds after which an agent that owes an answer counts as lost
_CLOSE_TIMEOUT = 10.0
_STARTS = 5  # of agents that signals end before they have joined
_PREFIX = "trainmaster-agent-"
_FILE = "agent"

_processes: list[subprocess.Popen[bytes]] = []  # that have not ended; those that are released have no agent


def binary() -> str:
    """Return the path of the program: TRAINMASTER_BIN, or the program that was installed with this package."""
    named = os.environ.get("TRAINMASTER_BIN")
    if named:
        if os.path.isfile(named) and not os.access(named, os.X_OK):
            raise errors.AgentError(f"TRAINMASTER_BIN: expected a program, found a file that is not executable, {named!r}: chmod +x")
        if not os.path.isfile(named):
            raise errors.AgentError(f"TRAINMASTER_BIN: expected a program, found {named!r}: correct the variable, or unset it")
        return named
    places = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    with contextlib.suppress(KeyError):  # no such scheme on this platform
        places.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    for place in places:
        path = os.path.join(place, "trainmaster")
        if os.access(path, os.X_OK):
            return path
    raise errors.AgentError(
        f"trainmaster: expected the program in {places[0]}, found none: install the package with pip, "
        "or set TRAINMASTER_BIN to bin/master of a checkout"
    )


def check_version(found: str, path: str) -> None:
    """Refuse a program of another version than the program that this package was built with."""
    if MASTER and found != MASTER:
        raise errors.AgentError(
            f"{path}: expected version {MASTER}, as this package has, found {found}: install the package of that version, or unset TRAINMASTER_BIN"
        )


class Directory:
    """A directory for one file, such as the socket of an agent, with a lock that ends with this process and its forks."""

    def __init__(self) -> None:
        """Make it, and remove the directories of processes that were killed."""
        # A path of a Unix socket has at most 107 bytes.
        parent = tempfile.gettempdir() if len(tempfile.gettempdir()) < 74 else "/tmp"
        for path in glob.glob(os.path.join(glob.escape(parent), _PREFIX + "????????")):
            with contextlib.suppress(OSError):
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(path)
                finally:
                    os.close(lock)
        while True:
            self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)  # with mode 0700
            with contextlib.suppress(FileNotFoundError):
                self._lock = os.open(self.path, os.O_RDONLY)
                with contextlib.suppress(OSError):  # no locks on this file system: then no process has one
                    fcntl.flock(self._lock, fcntl.LOCK_EX)
                if os.path.exists(self.path):  # otherwise another process has removed it before the lock
                    break
                os.close(self._lock)
        self.file = os.path.join(self.path, _FILE)

    def remove(self) -> None:
        """Remove it, if it is not removed."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            with contextlib.suppress(OSError):
                _remove(self.path)
            os.close(lock)


def _remove(path: str) -> None:
    """Remove a directory that has no file but this one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(path, _FILE))
    os.rmdir(path)


class Agent:
    """A running agent with its main connection."""

    def __init__(self, args: list[str], environment: dict[str, str]) -> None:
        """Start an agent. The caller must call `hello` first."""
        self.program = binary()
        _processes[:] = [p for p in _processes if p.poll() is None]
        self.owner = os.getpid()
        self._directory = Directory()
        self.path = self._directory.file
        ours, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                [self.program, "agent", "--fd", str(theirs.fileno()), "--parent", str(self.owner), "--socket", self.path, *args],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
            )
        except BaseException as e:
            ours.close()
            self._directory.remove()
            if isinstance(e, OSError):
                raise errors.AgentError(f"{self.program}: cannot start the agent: {e}") from e
            raise
        finally:
            theirs.close()
        _processes.append(self.process)
        self.link = Link(ours)

    def hello(self, wait: float, timeout: float) -> dict[str, Any]:
        """Return what the agent says of the job, when it has joined. A program that does not answer within `wait` and `timeout` is no agent."""
        limit = wait + min(STOPPED, timeout)
        try:
            reply = self.link.call("hello", limit, version=PROTOCOL, sdk=VERSION, wait=wait)
        except errors.AgentTimeoutError:
            raise errors.AgentError(
                f"{self.program}: expected the agent to answer within {limit:.0f} s, found no answer: it is stopped, or it is another program: "
                "correct or unset TRAINMASTER_BIN"
            ) from None
        except errors.AgentLostError:
            code = self.process.wait()
            if code == 0:
                expected = "expected the program of trainmaster, found one that ends"
                raise errors.AgentError(f"{self.program}: {expected}: correct or unset TRAINMASTER_BIN") from None
            if code < 0:
                raise errors.AgentLostError(f"{self.program} agent: ended by signal {-code} at its start") from None
            raise errors.AgentError(f"{self.program} agent: exit code {code} at the start: its message is above, on standard error") from None
        check_version(str(reply.get("master", "")), self.program)
        return reply

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def close(self, in_order: bool = True) -> None:
        """End the agent. In order: it reports finished tasks first. It does nothing in a forked process."""
        if os.getpid() != self.owner:
            return
        if in_order and self.is_alive():
            with contextlib.suppress(errors.Error, TimeoutError):
                self.link.call("close", timeout=_CLOSE_TIMEOUT)
        self.link.close()
        try:
            self.process.wait(_CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._directory.remove()

    def release(self, finished: Sequence[int]) -> None:
        """Let the agent report finished tasks and end, without a wait. It does nothing in a forked process."""
        if os.getpid() != self.owner:
            return
        with contextlib.suppress(errors.Error):
            if finished:
                self.link.post("finish", finished=list(finished))
            self.link.begin("close")
        self.link.close()
        self._directory.remove()


def started(args: list[str], environment: dict[str, str], await_join: Callable[[Agent], None]) -> Agent:
    """Start an agent and wait until it has joined. If a signal ends it before, another one is started."""
    ended: Exception | None = None
    for _ in range(_STARTS):
        if ended is not None:
            log.warning("%s: starting another one", ended)
        agent = Agent(args, environment)
        try:
            await_join(agent)
            return agent
        except errors.AgentLostError as e:
            agent.close(in_order=False)
            ended = e
        except BaseException:
            agent.close(in_order=False)
            raise
    raise errors.AgentError(f"agent: expected it to start, found {_STARTS} ends: {ended}. Look for what kills it, such as a limit of memory")


def await_released() -> None:
    """Wait for the agents that end by themselves. All others have ended: the exit functions of their owners come first."""
    for process in _processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_CLOSE_TIMEOUT)


class Chunks:
    """Reads chunks from the agent in any process. Each process opens a connection when it reads its first chunk."""

    def __init__(self, path: str) -> None:
        """Name the socket of the agent."""
        self.path = path
        self._link: Link | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connection out."""
        return {"path": self.path, "_link": None}

    def read(self, chunk: Any, following: Any = None) -> Records:
        """Return the records of a chunk. Meanwhile, the agent reads the following one. AgentLostError: the agent has ended."""
        if self._link is None or self._link.pid != os.getpid():
            try:
                sock = socket.socket(socket.AF_UNIX)
            except OSError as e:
                raise errors.ResourceError(f"connection to the agent: expected a file descriptor, found none ({e.strerror}): {FEWER}") from e
            try:
                sock.connect(self.path)
            except (ConnectionRefusedError, FileNotFoundError):
                sock.close()
                raise errors.AgentLostError from None
            self._link = Link(sock)
            weakref.finalize(self._link, sock.close).atexit = False
        return self._link.chunk(chunk, following)

    def close(self) -> None:
        """Close the connection of this process."""
        if self._link is not None and self._link.pid == os.getpid():
            self._link.close()
