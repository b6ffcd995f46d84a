"""The measurements. Each returns figures; rates that are compared are of the same run, in turns."""

from __future__ import annotations

import json
import math
import os
import pathlib
import socket
import statistics
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .._agent import binary
from ..client import Client
from ..records import write_records
from .processes import Clock, Master, Spent, memory

_RECORD = 1024  # bytes
_PATIENCE = 600.0  # seconds: more than a measurement takes on a slow machine
_IDLE = 1.0  # seconds after the start of an agent, for its memory


class Figure(NamedTuple):
    """A figure with its limit and the value that is aimed at."""

    name: str
    value: float
    unit: str
    limit: float
    aim: float
    is_most: bool  # the limit is a maximum
    detail: dict[str, Any]


def _percentile(values: Sequence[float], p: int) -> float:
    """Return the smallest value that at least p percent of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * p / 100) - 1)]


def _dataset(directory: str, records: int) -> list[str]:
    body = os.urandom(1 << 20)
    return write_records(os.path.join(directory, "records"), (body[i % 1000 : i % 1000 + _RECORD] for i in range(records)), shards=4)


def _read_file(path: str) -> Iterator[list[memoryview]]:
    """Read the chunks of a RecordIO file with Python alone."""
    header, length = struct.Struct("<5I"), struct.Struct("<I").unpack_from
    with open(path, "rb") as f:
        while head := f.read(header.size):
            _, crc, _, size, count = header.unpack(head)
            payload = f.read(size)
            if zlib.crc32(payload) != crc:
                raise ValueError(f"{path}: damaged")
            view, at, records = memoryview(payload), 0, []
            for _ in range(count):
                end = at + 4 + length(payload, at)[0]
                records.append(view[at + 4 : end])
                at = end
            yield records


def records(directory: str, runs: int) -> list[Figure]:
    """Read 1 KB records: tasks of a client against a reader in Python, and the memory of the agent after it."""
    count = 1 << 17
    paths = _dataset(directory, count)
    megabytes = count * _RECORD / 1e6
    ours, pure = [], []
    with Master(runs + 1) as master, Client(master.addr) as client:
        client.report_dataset(paths)
        clock, pass_, n = Clock(agent=client.agent_pid, master=master.pid()), 0, 0
        for task in client.tasks():
            if task.pass_ != pass_:  # the first pass is a warm-up
                if pass_ > 1:
                    ours.append(clock.read())
                if pass_:
                    pure.append(_pure(paths))
                pass_ = task.pass_
                clock = Clock(agent=client.agent_pid, master=master.pid())
            for record in task:
                n += len(record)
        ours.append(clock.read())
        used = memory(client.agent_pid)
    if n != count * _RECORD * (runs + 1):
        raise AssertionError(f"records: expected {count * (runs + 1)} records of {_RECORD} bytes, found {n} bytes")
    rate = megabytes / statistics.median([s.total for s in ours])
    alone = megabytes / statistics.median([s.total for s in pure])
    detail = {
        "python_reader": round(alone),
        "ratio": round(rate / alone, 2),
        "cpu_ms": _cpu(ours),
        "mb_per_s": round(megabytes / statistics.median([s.seconds for s in ours])),
        "python_reader_mb_per_s": round(megabytes / statistics.median([s.seconds for s in pure])),
    }
    return [
        Figure("1 KB records", rate, "MB per CPU-s", 900, 1500, False, detail),
        Figure("memory of the agent, reading", used["resident"], "MB", 50, 30, True, used),
    ]


def _cpu(spent: Sequence[Spent]) -> dict[str, int]:
    """Return the processor time of each process in milliseconds."""
    return {name: round(1e3 * statistics.median([s.cpu[name] for s in spent])) for name in spent[0].cpu}


def _pure(paths: list[str]) -> Spent:
    clock, n = Clock(), 0
    for path in paths:
        for chunk in _read_file(path):
            for record in chunk:
                n += len(record)
    return clock.read()


def decode(record: memoryview | bytes) -> Any:
    """Make a sample of a record, in the workers of both loaders."""
    import numpy as np  # noqa: PLC0415 it is an extra

    return np.frombuffer(record, np.uint8).copy()


class _List:
    """A dataset of torch in memory."""

    def __init__(self, items: list[bytes]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, at: int) -> Any:
        return decode(self.items[at])


def loader(directory: str, runs: int) -> list[Figure]:
    """Read batches of 64 records of 1 KB with two workers, in order and shuffled: the DataLoader against torch's on a list in memory."""
    return [_loader(os.path.join(directory, name), runs, shuffle=name == "shuffled") for name in ("in order", "shuffled")]


def _loader(directory: str, runs: int, shuffle: bool) -> Figure:
    import torch  # noqa: PLC0415 it is an extra

    from ..torch import DataLoader  # noqa: PLC0415

    count, batch = 1 << 14, 64
    paths = _dataset(directory, count)
    items = [bytes(r) for path in paths for chunk in _read_file(path) for r in chunk]
    data: Any = _List(items)
    theirs = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=2, persistent_workers=True, shuffle=shuffle)
    for _ in theirs:  # the workers start
        pass
    their_pids = {f"worker {i}": w.pid for i, w in enumerate(theirs._iterator._workers)}  # type: ignore[union-attr]
    ours, torchs = [], []
    with Master(runs + 2) as master, Client(master.addr) as client:  # the workers end in the last pass
        mine = DataLoader(paths, decode=decode, batch_size=batch, num_workers=2, shuffle=shuffle, client=client)
        for epoch in mine.passes():
            if epoch.number > runs + 1:
                break
            pids = {f"worker {i}": p for i, p in enumerate(mine.worker_pids)}
            clock, n = Clock(agent=client.agent_pid, master=master.pid(), **pids), 0
            for x in epoch:
                n += len(x)
            spent = clock.read()
            if n != count:
                raise AssertionError(f"loader: expected {count} records, found {n}")
            if epoch.number == 1:
                continue
            ours.append(spent)
            clock = Clock(**their_pids)
            for x in theirs:
                n += len(x)
            torchs.append(clock.read())
    rate, other = (count / statistics.median([s.seconds for s in spent]) for spent in (ours, torchs))
    detail = {
        "records_per_s": round(rate),
        "torch_records_per_s": round(other),
        "cpu_ms": _cpu(ours),
        "torch_cpu_ms": _cpu(torchs),
        "cpu_ratio": round(statistics.median([s.total for s in torchs]) / statistics.median([s.total for s in ours]), 2),
    }
    return Figure("DataLoader, records/s" + ", shuffled" * shuffle, rate / other, "of torch's", 0.8, 1, False, detail)


def parameters(directory: str, runs: int) -> list[Figure]:
    """Exchange 100 MiB with two parameter servers: through the agent against the Go client."""
    import numpy as np  # noqa: PLC0415 it is an extra

    from .. import ps  # noqa: PLC0415

    mib, columns = 100, 1 << 18
    sockets = pathlib.Path(directory, "s")
    sockets.mkdir(mode=0o700)
    rule = {"kind": "sgd", "learning_rate": 1e-9}
    shards, addrs = [], []
    for i in range(2):
        shards.append(_Child("shard", {"Via": "frames", "MiB": mib, "Index": i, "Sockets": str(sockets)}))
        addrs.append(shards[-1].receive())
    go = _Child("pusher", {"Via": "frames", "MiB": mib, "Addrs": addrs, "Ordinal": 99, "DType": "float32", "Optimizer": rule})
    go.receive()
    os.environ["TRAINMASTER_SERVERS"] = ",".join(addrs)
    rates: list[float] = []
    others: list[float] = []
    try:
        with Master(1) as master, Client(master.addr) as client:
            exchange = ps.Client({"w": np.ones((mib, columns), np.float32)}, optimizer="sgd", lr=1e-9, client=client)
            exchange.gradients["w"][:] = 1e-3
            exchange.push_pull()
            for _ in range(runs):
                began = time.perf_counter()
                pushed = go.ask()
                others.append(pushed["Bytes"] / 1e9 / (time.perf_counter() - began))
                steps = pushed["Bytes"] // (8 * mib * columns)
                began = time.perf_counter()
                for _ in range(steps):
                    exchange.push_pull()
                rates.append(8 * mib * columns * steps / 1e9 / (time.perf_counter() - began))
    finally:
        del os.environ["TRAINMASTER_SERVERS"]
        for child in (go, *shards):
            child.stop()
    detail = {"gb_per_s": round(statistics.median(rates), 2), "go_gb_per_s": round(statistics.median(others), 2)}
    return [Figure("push-pull, GB/s", statistics.median(rates) / statistics.median(others), "of the Go client", 0.8, 0.95, False, detail)]


class _Child:
    """A process of `trainmaster bench`: lines of JSON over its standard input and output."""

    def __init__(self, role: str, config: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [binary(), "bench", "child", role, json.dumps(config)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def receive(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"trainmaster bench child: exit code {self.process.wait()}: its message is above, on standard error")
        return json.loads(line)

    def ask(self) -> Any:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.receive()

    def stop(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(_PATIENCE)


def agent(directory: str, runs: int) -> list[Figure]:  # noqa: ARG001 it writes nothing
    """Start agents: until a client has joined the job. The program is in the page cache."""
    times: list[float] = []
    used: dict[str, float] = {}
    with Master(1) as master:
        for _ in range(max(20, 4 * runs)):
            began = time.perf_counter()
            with Client(master.addr):
                times.append(1e3 * (time.perf_counter() - began))
        with Client(master.addr) as client:
            time.sleep(_IDLE)
            used = memory(client.agent_pid)
    detail = {"n": len(times), "p99": round(_percentile(times, 99), 1), "min": round(min(times), 1)}
    return [
        Figure("start of the agent, p50", statistics.median(times), "ms", 100, 30, True, detail),
        Figure("memory of the agent, idle", used["resident"], "MB", 50, 30, True, used),
    ]


def killed(directory: str, runs: int) -> list[Figure]:
    """Kill a trainer (SIGKILL) that has the only task, while another one waits for a task."""
    paths = write_records(os.path.join(directory, "one"), [b"x"], shards=1)
    times: list[float] = []
    with Master(1, "--task-max-failures", "1000000") as master:
        holder = waiting = None
        try:
            holder = _Trainer(master.addr, paths)
            holder.receive()
            for _ in range(max(20, 4 * runs)):
                waiting = _Trainer(master.addr, paths)
                began = time.monotonic()  # of the machine, the same in all processes
                holder.process.kill()
                times.append(1e3 * (waiting.receive() - began))
                holder.end()
                holder, waiting = waiting, None
        finally:
            for trainer in (holder, waiting):
                if trainer is not None:
                    trainer.end()
    detail = {"n": len(times), "p50": round(statistics.median(times), 1), "max": round(max(times), 1)}
    return [Figure("killed trainer to its task with another, p99", _percentile(times, 99), "ms", 150, 30, True, detail)]


class _Trainer:
    """A trainer in a process of its own, which says when it has a task."""

    def __init__(self, addr: str, paths: list[str]) -> None:
        self.process = subprocess.Popen([sys.executable, "-m", f"{__package__}.trainer", addr, *paths], stdout=subprocess.PIPE, text=True)
        self._lines: Iterator[str] = iter(self.process.stdout or ())
        self._line()  # its request is with the master

    def _line(self) -> float:
        line = next(self._lines, "")
        if not line:
            raise RuntimeError(f"trainer: exit code {self.process.wait()}: its message is above, on standard error")
        return float(line)

    def receive(self) -> float:
        """Return the time at which it had a task."""
        return self._line()

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


def agreement(directory: str, runs: int) -> list[Figure]:  # noqa: ARG001 it writes nothing
    """Agree on the next step on 3 ranks, behind a step of 2 ms."""
    size = 3
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    command = [sys.executable, "-m", f"{__package__}.rank", address]
    steps = str(max(300, 100 * runs))
    environment = {"GLOO_SOCKET_IFNAME": "lo", **os.environ}
    ranks = [subprocess.Popen([*command, str(r), str(size), steps], stdout=subprocess.PIPE, text=True, env=environment) for r in range(size)]
    try:
        output = ranks[0].communicate(timeout=_PATIENCE)[0]
    finally:
        for rank in ranks[1:] if ranks[0].poll() == 0 else ():
            rank.wait(_PATIENCE)
        for rank in ranks:
            rank.kill()
            rank.communicate()
    times = json.loads(output)
    detail = {"n": len(times["hidden"]), "p99": round(_percentile(times["hidden"], 99)), "alone_p50": round(statistics.median(times["alone"]))}
    return [Figure("agreement of 3 ranks behind a step, p50", statistics.median(times["hidden"]), "us", 300, 150, True, detail)]


MEASUREMENTS: dict[str, Callable[[str, int], list[Figure]]] = {
    "records": records,
    "loader": loader,
    "parameters": parameters,
    "agent": agent,
    "killed": killed,
    "agreement": agreement,
}
