"""A master of this process alone, for trying a script out."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import subprocess
import tempfile
import time
from types import TracebackType

from . import errors
from ._agent import binary

log = logging.getLogger("trainmaster")

_START_TIMEOUT = 60.0
_SERVING = re.compile(r"msg=serving\b.* listen=\"?([^\s\"]+)")
# The shell ends the master after a line, or when the writing end of its standard input is closed: when this process ends, in any way.
_GUARD = 'exec 3<&0; "$0" "$@" <&- 3<&- & read -r _ <&3; kill $!; wait; rm -rf "$LOCAL_DIRECTORY"'

_own: Local | None = None


class Local:
    """A master with an embedded etcd. `addr` is its address. It ends with `close`, or with this process."""

    def __init__(self, passes: int = 1, *flags: str) -> None:
        """Start a master. `flags` are further flags of `trainmaster`."""
        self._owner = os.getpid()
        self._directory = tempfile.mkdtemp(prefix="trainmaster-local-")
        self._log = os.path.join(self._directory, "master.log")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TRAINMASTER_")}
        environment["LOCAL_DIRECTORY"] = self._directory
        data = os.path.join(self._directory, "etcd")
        command = [binary(), "--data-dir", data, "--listen", "127.0.0.1:0", "--http", "", "--passes", str(passes), *flags]
        with open(self._log, "wb") as f:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, *command], stdin=subprocess.PIPE, stdout=f, stderr=f, env=environment, start_new_session=True
            )
        try:
            self.addr = self._await()
        except BaseException:
            self.close()
            raise
        atexit.register(self.close)

    def _await(self) -> str:
        end = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < end:
            with open(self._log, encoding="utf-8", errors="replace") as f:
                text = f.read()
            if found := _SERVING.search(text):
                return found[1]
            if "level=fatal" in text or re.search("^master: ", text, re.MULTILINE):
                break
            time.sleep(0.01)
        raise errors.AgentError(f"local master: expected it to serve, found:\n{text[-2000:]}")

    def close(self) -> None:
        """End the master."""
        if os.getpid() != self._owner or self._guard.stdin is None or self._guard.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(b"\n")  # forks of this process, as workers are, keep the pipe open
            self._guard.stdin.close()
        self._guard.wait()

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


def for_this_process() -> str:
    """Return the address of the master of this process, and start it first if there is none."""
    global _own
    if _own is None:
        if others := _others():
            raise errors.InvalidError(
                f"TRAINMASTER_ADDR: expected the address of a master, found none {others}: set it, since each process would train alone on all data"
            )
        _own = local()
        log.warning("no TRAINMASTER_ADDR is set: started a master for this process alone, at %s", _own.addr)
    return _own.addr
