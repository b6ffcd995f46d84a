"""Jobs for the tests: real masters with an embedded etcd, and datasets."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

import trainmaster as tm

MASTER = os.environ.get("TRAINMASTER_BIN") or sys.exit("TRAINMASTER_BIN: expected the path of bin/master, found none: run scripts/python.sh test")


def _free_ports() -> Iterator[int]:
    low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(12_000, low if low > 12_000 else 32_768)
    begin = random.randrange(len(ports))
    for port in (*ports[begin:], *ports[:begin]):
        try:
            with socket.socket() as s:
                s.bind(("127.0.0.1", port))
        except OSError:
            continue
        yield port


_ports = _free_ports()


def free_port() -> int:
    """A port that nothing uses now, each one once. It is below the ephemeral ports, which the kernel gives to other sockets at any time."""
    return next(_ports)


class Job:
    """A master, which can be killed and started again with the same state."""

    def __init__(self, directory: pathlib.Path, *flags: str) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.flags = flags
        self.addr = f"127.0.0.1:{free_port()}"
        self.log = directory / "master.log"
        self.start()

    def start(self) -> None:
        """Start the master, and wait until it leads."""
        had = self.log.read_text().count("msg=leading") if self.log.exists() else 0
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TRAINMASTER_")}
        with self.log.open("ab") as f:
            self.process = subprocess.Popen(
                [MASTER, "--data-dir", str(self.directory / "etcd"), "--listen", self.addr, "--http", "", "--linger", "20s", *self.flags],
                stdin=subprocess.DEVNULL,
                stdout=f,
                stderr=f,
                env=environment,
            )
        end = time.monotonic() + 240
        while self.log.read_text().count("msg=leading") == had:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.01)  # the log is a file: there is nothing to wait on

    def await_log(self, words: str, times: int) -> None:
        """Wait for words in the log of the master."""
        await_text(self.log, words, times)

    def kill(self) -> None:
        """Kill the master with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End the master."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def verify(self) -> list[dict[str, Any]]:
        """Wait for the end of the master, and return what `verify` says of each pass; it must exit with 0."""
        try:
            self.process.wait(240)
        finally:
            self.stop()
        command = [MASTER, "verify", "--data-dir", str(self.directory / "etcd"), "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        passes: list[dict[str, Any]] = json.loads(done.stdout)
        return passes


class Servers:
    """A job with parameter servers. `etcd` is its address."""

    def __init__(self, directory: pathlib.Path, stack: contextlib.ExitStack, *flags: str) -> None:
        self.etcd, addr = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.log, self._stack = stack.enter_context((directory / "log").open("wb")), stack
        self.start("--data-dir", str(directory / "etcd"), "--etcd-listen", self.etcd, "--listen", addr, "--http", "", *flags)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process of the job."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TRAINMASTER_")}
        process = subprocess.Popen([MASTER, *arguments], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=environment)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def serve(self, *flags: str) -> subprocess.Popen[bytes]:
        """Start a parameter server."""
        return self.start("pserver", "--endpoints", self.etcd, *flags)


def refuses(words: str, call: Callable[[], Any]) -> None:
    with pytest.raises((tm.Error, ValueError, TypeError)) as e:
        call()
    assert words in str(e.value), e.value


def numbers(directory: pathlib.Path, n: int, shards: int = 2, per_chunk: int = 25, size: int = 12, force: bool = False) -> str:
    """Write n records, each with its number and a checksum, and return the glob of the files."""
    body = (size + 4) * per_chunk

    def records() -> Iterable[bytes]:
        for i in range(n):
            head = struct.pack("<q", i)
            yield head + struct.pack("<I", zlib.crc32(head)) + bytes(max(0, size - 12))

    tm.write_records(directory / "numbers", records(), shards=shards, chunk_bytes=body, force=force)
    return str(directory / "numbers-*")


def number_of(record: bytes | memoryview) -> int:
    """Return the number of a record, which must be whole."""
    head, crc = bytes(record[:8]), struct.unpack("<I", record[8:12])[0]
    assert zlib.crc32(head) == crc
    return int(struct.unpack("<q", head)[0])


def once_per_pass(seen: Counter[int], n: int, passes: int) -> None:
    """Require each number once in each pass."""
    assert dict(Counter(seen.values())) == {passes: n}, {k: v for k, v in seen.items() if v != passes}


def agent_log(text: str) -> list[int]:
    """Process ids after the word agent in a log."""
    return [int(p) for p in re.findall(r"^agent (\d+)", text, re.MULTILINE)]


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def ends(pid: int) -> None:
    """Require that a process of another process ends."""
    end = time.monotonic() + 240
    while is_running(pid):
        assert time.monotonic() < end, f"process {pid} runs"
        time.sleep(0.02)  # it is no child: there is nothing to wait on


def kill(pid: int) -> None:
    """Kill a process of this test."""
    os.kill(pid, signal.SIGKILL)


def end(pid: int) -> None:
    """Kill a process of this test, and wait for the end of all its threads: until then, its sockets can be open."""
    descriptor = os.pidfd_open(pid)
    try:
        kill(pid)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(240_000)
    finally:
        os.close(descriptor)


def stop(pid: int) -> None:
    """Stop a process, and wait until all its threads are stopped."""
    os.kill(pid, signal.SIGSTOP)
    while any(") T " not in t.read_text() for t in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")):
        time.sleep(0.01)


def await_text(file: pathlib.Path, words: str, times: int) -> None:
    """Wait until a file has words so many times."""
    end = time.monotonic() + 240
    while (text := file.read_text(errors="replace")).count(words) < times:
        assert time.monotonic() < end, f"expected {words!r} {times} times, found {text[-2000:]}"
        time.sleep(0.02)  # a file: there is nothing to wait on
