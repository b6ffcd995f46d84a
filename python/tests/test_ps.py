"""Parameter servers: real masters, servers and trainers."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from lab import MASTER, Servers

import trainmaster as tm

HERE = pathlib.Path(__file__).parent
DIGITS = HERE.parents[1] / "testdata" / "digits.csv.gz"


def digits(directory: pathlib.Path) -> None:
    """Write the digits as train-* and test-*."""
    with gzip.open(DIGITS, "rt") as f:
        rows = [[int(v) for v in row] for row in csv.reader(f)]
    random.Random(1797).shuffle(rows)
    records = [struct.pack("<BBxxfII", 3, 1, 1 / 16, row[-1], 10) + bytes(row[:-1]) for row in rows]
    fifth = len(records) // 5
    tm.write_records(directory / "test", records[:fifth], shards=1)
    tm.write_records(directory / "train", records[fifth:], shards=4, chunk_bytes=4096)


class Run:
    """A `master run` with trainers of train_digits.py."""

    def __init__(self, directory: pathlib.Path, options: dict[str, Any], *flags: str) -> None:
        self.directory = directory
        digits(directory)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TRAINMASTER_")} | {"TRAINMASTER_BIN": MASTER}
        program = [sys.executable, str(HERE / "train_digits.py"), json.dumps({"data": str(directory), **options})]
        self.log = directory / "run.log"
        with self.log.open("wb") as f:
            self.process = subprocess.Popen(
                [MASTER, "run", "--dir", str(directory / "run"), "--data", str(directory / "train-*"), "--ps", "2", *flags, "--", *program],
                stdin=subprocess.DEVNULL,
                stdout=f,
                stderr=f,
                env=environment,
            )

    def text(self) -> str:
        """All logs."""
        logs = [self.log, *sorted((self.directory / "run").glob("*/logs/*.log"))]
        return "\n".join(f"--- {p.name}\n{p.read_text()[-6000:]}" for p in logs)

    def pid(self, name: str, other: int = 0) -> int:
        """Process id of a trainer that trains."""
        end = time.monotonic() + 240
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(FileNotFoundError, ValueError):
                pid = int((self.directory / f"{name}.pid").read_text())
                if pid != other:
                    return pid
            time.sleep(0.01)  # a file: there is nothing to wait on
        raise AssertionError(self.text())

    def wait(self) -> list[float]:
        """Wait for the end, require that each task counts once per pass, and return the accuracies."""
        code = self.process.wait(300)
        assert code == 0, self.text()
        state = next((self.directory / "run").glob("*/etcd"))
        done = subprocess.run([MASTER, "verify", "--data-dir", str(state), "-o", "json"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return [float(line.split()[1]) for line in (self.directory / "accuracy").read_text().splitlines()]

    def stop(self) -> None:
        """End what is left."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(240)


def test_gradients_of_an_operation_in_progress_stay(tmp_path: pathlib.Path) -> None:
    """A server hangs for longer than the time limit of a push. The next push waits until the first one no longer reads the gradients."""
    size = 8 << 20  # more than the buffers of a connection
    with contextlib.ExitStack() as stack:
        servers = Servers(tmp_path, stack, "--ps", "1")
        server = servers.serve("--ps-ttl", "120s")
        client = stack.enter_context(tm.Client(endpoints=servers.etcd))
        table = tm.ps.Table("t", 4, init="zeros")
        ps = tm.ps.Client({"w": np.zeros(size, np.float32)}, optimizer="sgd", lr=1.0, client=client, tables=[table])

        def push(value: float) -> None:
            ps.push(grads={"w": np.full(size, value, np.float32)}, rows={"t": ([7], np.full((1, 4), value, np.float32))})

        server.send_signal(signal.SIGSTOP)
        client.timeout = 0.1
        with pytest.raises(tm.errors.MasterTimeoutError):
            push(1)
        with pytest.raises(tm.errors.MasterTimeoutError):
            push(100)
        with pytest.raises(tm.errors.MasterTimeoutError):  # the rows alone
            ps.push(rows={"t": ([7], np.full((1, 4), 100, np.float32))})
        server.send_signal(signal.SIGCONT)
        client.timeout = 240
        push(10)
        ps.pull()
        assert np.unique(ps.parameters["w"]).tolist() == [-11.0]
        assert ps.lookup("t", [7]).tolist() == [[-11.0] * 4]


ASYNC = {"optimizer": "adam", "lr": 2e-3}
SYNC = {"optimizer": "momentum", "lr": 0.05, "momentum": 0.9}


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        pytest.param({"optimizer": ASYNC, "check": True}, ["--passes", "12"], id="asynchronous", marks=pytest.mark.long),
        pytest.param(
            {"optimizer": {**ASYNC, "push_every": 2, "pull_every": 2, "staleness": 8, "wire_dtype": "bfloat16"}, "workers": 2},
            ["--passes", "16"],
            id="fewer exchanges",
            marks=pytest.mark.long,
        ),
        pytest.param({"optimizer": SYNC}, ["--passes", "12", "--update-mode", "sync"], id="synchronous"),
    ],
)
def test_killed_trainer(tmp_path: pathlib.Path, options: dict[str, Any], flags: list[str]) -> None:
    """Three trainers on two servers train the digits. One is killed in the middle. Each task counts once per pass."""
    run = Run(tmp_path, options, "--trainers", "3", *flags)
    try:
        first = run.pid("trainer-1")
        os.kill(first, signal.SIGKILL)
        run.pid("trainer-1", other=first)
        (tmp_path / "go").touch()
        accuracies = run.wait()
    finally:
        run.stop()
    assert min(accuracies) > 0.93, (accuracies, run.text())
    assert re.search(r"restarts +1", run.log.read_text()), run.log.read_text()


REST = """
import torch, trainmaster as tm
def parse(record): return torch.ones(2)
model = torch.nn.Linear(2, 1)
loader = tm.torch.DataLoader(decode=parse)
opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=0.1, push_every=1000)
for x in loader:
    opt.zero_grad()
    model(x).sum().backward()
    opt.step()
assert opt.pull()
print("pushes", opt.ps.version)
"""


def test_rest_is_pushed_before_a_task_is_finished(tmp_path: pathlib.Path) -> None:
    (tmp_path / "rest.py").write_text(REST)
    tm.write_records(tmp_path / "data", (b"%d" % i for i in range(40)), shards=2, chunk_bytes=24)
    command = [MASTER, "run", "--data", "data-*", "--ps", "1", "--trainers", "1", "--", sys.executable, "rest.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    log = (tmp_path / "trainmaster-run/001/logs/trainer-0.log").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + log
    tasks = re.search(r"^tasks +(\d+) in", done.stdout, re.MULTILINE)
    passes = re.search(r"^passes +(\d+) in", done.stdout, re.MULTILINE)
    assert tasks and passes and int(tasks[1]) > 1, done.stdout
    assert f"pushes {int(tasks[1]) * int(passes[1])}\n" in log, done.stdout + log


STAGE = """
import os, pathlib, time
import torch, trainmaster as tm
tm.client._SLICE = 0.2
def parse(record): return torch.ones(2)
def wait_for(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.01)  # a file: there is nothing to wait on
model = torch.nn.Linear(2, 1)
loader = tm.torch.DataLoader(decode=parse)
opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=0.1)
for x in loader:
    def closure():
        loss = model(x).sum()
        loss.backward()
        return loss
    if os.environ["TRAINMASTER_TRAINER"] == "trainer-1":
        pathlib.Path("holds a task").touch()
        wait_for("release")
    else:
        wait_for("holds a task")
    opt.step(closure)
"""


def test_step_says_that_it_waits_for_other_trainers(tmp_path: pathlib.Path) -> None:
    (tmp_path / "stage.py").write_text(STAGE)
    tm.write_records(tmp_path / "data", (b"%d" % i for i in range(40)), shards=2, chunk_bytes=24)
    command = [
        MASTER,
        "run",
        "--data",
        "data-*",
        "--ps",
        "1",
        "--update-mode",
        "sync",
        "--trainers",
        "2",
        "--passes",
        "1",
        "--",
        sys.executable,
        "stage.py",
    ]
    output, log = tmp_path / "output", tmp_path / "trainmaster-run/001/logs/trainer-0.log"
    with output.open("wb") as f:
        job = subprocess.Popen(command, cwd=tmp_path, stdout=f, stderr=f)
    try:
        end = time.monotonic() + 200
        while not log.exists() or "stage: waiting for the gradients of the other trainers that have a task" not in log.read_text():
            assert job.poll() is None, output.read_text()
            assert time.monotonic() < end, output.read_text()
            time.sleep(0.05)  # a file: there is nothing to wait on
        (tmp_path / "release").touch()
        assert job.wait(200) == 0, output.read_text()
    finally:
        if job.poll() is None:
            job.terminate()
            job.wait()
