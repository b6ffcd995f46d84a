"""Processes of the measurements: a master, and the processor time and memory of any process."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from typing import Any

from ..local import Local


def cpu(pid: int) -> float:
    """Return the processor time of the threads of a process, in seconds."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has ended
            total += int((task / "schedstat").read_text(encoding="utf-8").split()[0])
    return total / 1e9


def children(pid: int) -> list[int]:
    """Return the process ids of the children of a process."""
    return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]


def memory(pid: int) -> dict[str, float]:
    """Return the resident memory of a process, in MB.

    `private` belongs to this process, `shared` is memory of chunks and arrays that it shares with the trainer, and `program` is mapped from the
    program file, whose pages all processes of the program share.
    """
    found = {}
    for line in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.startswith(("Rss", "VmRSS")):
            found[name] = round(int(value.split()[0]) * 1024 / 1e6, 1)
    return {"resident": found["VmRSS"], "private": found["RssAnon"], "shared": found["RssShmem"], "program": found["RssFile"]}


class Master(Local):
    """A master for a measurement."""

    def pid(self) -> int:
        """Return its process id."""
        return children(self._guard.pid)[0]

    def __enter__(self) -> Master:
        """Return the master."""
        return self


class Clock:
    """Time and processor time since it was made: of this process, of others by name."""

    def __init__(self, **pids: int) -> None:
        """Begin."""
        self._pids = pids
        self._began = self._now()

    def _now(self) -> dict[str, float]:
        return {"time": time.perf_counter(), "python": time.process_time(), **{name: cpu(pid) for name, pid in self._pids.items()}}

    def read(self) -> Spent:
        """Return what was spent."""
        now = self._now()
        spent = {name: now[name] - began for name, began in self._began.items()}
        return Spent(spent.pop("time"), spent)


class Spent:
    """Time, and processor time by process, in seconds."""

    def __init__(self, seconds: float, cpu: dict[str, float]) -> None:
        """Make it."""
        self.seconds, self.cpu = seconds, cpu

    @property
    def total(self) -> float:
        """Processor time of all processes."""
        return sum(self.cpu.values())


def machine() -> dict[str, Any]:
    """Describe this machine."""
    return {"processors": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "kernel": os.uname().release}
