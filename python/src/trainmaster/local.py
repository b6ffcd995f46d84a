"""A master of this process alone, for trying a script out."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import select
import subprocess
import tempfile
import time
from types import TracebackType

from . import _check, errors
from ._agent import binary

log = logging.getLogger("trainmaster")

ENDED_FILE = "TRAINMASTER_ENDED_FILE"  # variable with the path of a file. When the job of torchrun has ended, it has the address of its master
_START_TIMEOUT = 60.0
_SERVING = re.compile(r"msg=serving\b.* listen=\"?([^\s\"]+)")
_USAGE = re.compile(r"^\S+: (.*)\nSee '", re.MULTILINE)
# The shell ends the master after a line, or when the writing end of its standard input is closed: when this process ends, in any way.
# The master alone has the pipe at 4: the end of the pipe is the end of the master.
_GUARD = 'exec 3<&0; "$0" "$@" <&- 3<&- 4>&1 >&2 & exec >&-; read -r _ <&3; kill $!; wait; rm -rf "$LOCAL_DIRECTORY"'

_own: Local | None = None
_masters: list[Local] = []  # of this process


class Local:
    """A master with an embedded etcd. `addr` is its address. It ends with `close`, or with this process."""

    def __init__(self, passes: int = 1, *flags: str) -> None:
        """Start a master. `flags` are further flags of `trainmaster`."""
        number = _check.whole("passes", passes, 0)
        for f in flags:
            _check.instance("flags", f, str, "text")
        self._owner = os.getpid()
        self.has_dataset = False
        self.is_over = False  # a client has seen the end of the job
        self._program = binary()
        self._directory = tempfile.mkdtemp(prefix="trainmaster-local-")
        self._log = os.path.join(self._directory, "master.log")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TRAINMASTER_")}
        environment["LOCAL_DIRECTORY"] = self._directory
        data = os.path.join(self._directory, "etcd")
        command = [self._program, "--data-dir", data, "--listen", "127.0.0.1:0", "--http", "", "--passes", str(number), *flags]
        with open(self._log, "wb") as log_file:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env=environment,
                start_new_session=True,
            )
        try:
            self.addr = self._await()
        except BaseException:
            self.close()
            raise
        _masters.append(self)
        atexit.register(self.close)

    def _await(self) -> str:
        end, has_ended = time.monotonic() + _START_TIMEOUT, False
        assert self._guard.stdout
        while not has_ended and time.monotonic() < end:
            # The log is read after its last line.
            has_ended = bool(select.select([self._guard.stdout], [], [], 0.01)[0])
            with open(self._log, encoding="utf-8", errors="replace") as f:
                text = f.read()
            if found := _SERVING.search(text):
                return found[1]
            if refused := _USAGE.search(text):
                raise errors.InvalidError(f"local: {refused[1]}")
            if "level=fatal" in text:
                break
        reason = "its end" if has_ended else f"no answer within {_START_TIMEOUT:.0f} s"
        is_master = "level=" in text or text.startswith("master: ")
        advice = "its messages" if is_master else "correct or unset TRAINMASTER_BIN. Its messages"
        raise errors.AgentError(f"{self._program}: expected a master that serves, found {reason}: {advice}:\n{text[-2000:]}")

    @property
    def is_gone(self) -> bool:
        """Whether the master has ended."""
        pipe = self._guard.stdout
        return pipe is None or pipe.closed or bool(select.select([pipe], [], [], 0)[0])

    @property
    def has_ended(self) -> bool:
        """Whether the job or the master has ended."""
        return self.is_over or self.is_gone

    def close(self) -> None:
        """End the master."""
        if os.getpid() != self._owner or self._guard.stdin is None or self._guard.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(b"\n")  # forks of this process, as workers are, keep the pipe open
            self._guard.stdin.close()
        self._guard.wait()
        if self._guard.stdout is not None:
            self._guard.stdout.close()

    def __enter__(self) -> Local:
        """Return the master."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the master."""
        self.close()


def local(passes: int = 1, *flags: str) -> Local:
    """Start a master for this process alone, and return it. Refused where other processes of the job would each train alone."""
    if others := _others():
        raise errors.InvalidError(
            f"local: expected the only process of a job, found one {others}: start a master, and give its address to all processes, "
            "since each would train alone on all data"
        )
    started = Local(passes, *flags)
    log.info("started a master for this process alone, at %s", started.addr)
    return started


def _others() -> str:
    """Return what shows that the job has other processes; empty: nothing does."""
    size = os.environ.get("WORLD_SIZE", "")
    if size not in {"", "1"}:
        return f"with WORLD_SIZE {size}"
    return "in a pod" if os.environ.get("KUBERNETES_SERVICE_HOST") else ""


def has_ended(addr: str) -> bool:
    """Whether the last master of this process with this address, or its job, has ended, or the job of the torchrun that started this process."""
    if master := _at(addr):
        return master.has_ended
    try:
        with open(os.environ.get(ENDED_FILE, ""), encoding="utf-8") as f:
            return f.read() == addr
    except OSError:
        return False


def is_gone(addr: str) -> bool:
    """Whether the last master of this process with this address has ended: nothing can be reported to it."""
    master = _at(addr)
    return master is not None and master.is_gone


def _at(addr: str) -> Local | None:
    return next((m for m in reversed(_masters) if m.addr == addr), None)


def lacks_dataset(addr: str) -> bool:
    """Whether a master is that of this process, which has named no dataset: no other process can."""
    return _own is not None and _own.addr == addr and not _own.has_dataset


def note_dataset(addr: str) -> None:
    """Note that this process has named the dataset of a master."""
    if _own is not None and _own.addr == addr:
        _own.has_dataset = True


def note_end(addr: str) -> None:
    """Note that the job of a master has ended."""
    if master := _at(addr):
        master.is_over = True


def for_this_process() -> str:
    """Return the address of the master of this process, and start it first if there is none, or if its job has ended."""
    global _own
    if _own is None or _own.has_ended:
        if others := _others():
            raise errors.InvalidError(
                f"TRAINMASTER_ADDR: expected the address of a master, found none {others}: set it, since each process would train alone on all data"
            )
        _own = local()  # the former one ends when its other clients have seen the end of the job
        log.warning("no TRAINMASTER_ADDR is set: started a master for this process alone, at %s", _own.addr)
    return _own.addr
