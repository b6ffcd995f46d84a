"""Commands of operators and of the system to a loader: stop, and evaluate the model."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lab import MASTER, Job, end, number_of, numbers, once_per_pass

import trainmaster as tm

StartJob = Callable[..., Job]
LIMIT = 240.0  # seconds

TRAINER = """
import os, signal, sys, trainmaster as tm
def parse(record): return int.from_bytes(record[:8], "little")
loader = tm.{kind}({data!r}, decode=parse, batch_size=1, addr={addr!r}, timeout=240{more})
@loader.on_stop
def save():
    {at_stop}
    print("stop", loader.over, file=sys.stderr, flush=True)
for batch in loader:
    print(loader.client.id, *batch.tolist(), flush=True)
    sys.stdin.readline()  # a long step: it ends with a line
print("the loop has ended", file=sys.stderr, flush=True)
"""


def admin(j: Job, *words: str) -> str:
    """Run a command for operators."""
    done = subprocess.run([MASTER, *words, "--addr", j.addr], capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def charges(j: Job) -> list[str]:
    """The lines of the log of the master about losses and failures."""
    return [line for line in j.log.read_text().splitlines() if "trainer lost" in line or "set aside" in line or "task failed" in line]


@pytest.mark.parametrize("kind", ["Loader", "torch.DataLoader"])
@pytest.mark.parametrize("how", ["drain", "SIGTERM"])
def test_trainer_that_is_stopped_finishes_its_batch_and_leaves(job: StartJob, tmp_path: pathlib.Path, kind: str, how: str) -> None:
    data, j = numbers(tmp_path, 600, per_chunk=100), job("--chunks-per-task", "1", "--session-ttl", "5s", "--task-max-failures", "0")
    more = ', num_workers=2, multiprocessing_context="fork"' if "torch" in kind else ""
    script = tmp_path / "trainer.py"
    # The first SIGTERM after a drain, as when the pod is removed, does not interrupt the function.
    at_stop = "os.kill(os.getpid(), signal.SIGTERM)" if how == "drain" else "pass"
    script.write_text(textwrap.dedent(TRAINER.format(kind=kind, data=data, addr=j.addr, more=more, at_stop=at_stop)))
    pipe = subprocess.PIPE
    trainer = subprocess.Popen([sys.executable, str(script)], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert trainer.stdout
    assert trainer.stdin
    name = trainer.stdout.readline().split()[0]
    if how == "drain":
        admin(j, "drain", name)
    else:
        trainer.send_signal(signal.SIGTERM)
    end, batches = time.monotonic() + LIMIT, 1
    while trainer.poll() is None and time.monotonic() < end:
        trainer.stdin.write("\n")
        trainer.stdin.flush()
        if not trainer.stdout.readline():
            break
        batches += 1
        time.sleep(0.1)  # the length of a step: a heartbeat has the command long before the 600 steps of the job are over
    _, output = trainer.communicate(timeout=LIMIT)
    assert trainer.returncode == 0, output
    reason = "an operator drains this trainer" if how == "drain" else "SIGTERM"
    assert output.splitlines()[-2:] == [f"stop {reason}", "the loop has ended"], output
    assert how == "drain" or batches == 1, "the loop goes on after the batch in hand"
    seen = Counter[int]()
    with tm.Client(j.addr) as client:
        for task in client.tasks():
            seen.update(number_of(r) for r in task)
    assert set(seen.values()) == {1}
    assert charges(j) == []
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0)]


def test_stop_and_the_end_of_the_agent_in_one_batch(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F496: the functions of on_stop are called, and the records of the lost session are given to another trainer."""
    data, j = numbers(tmp_path, 100, shards=1), job("--chunks-per-task", "1")
    loader = tm.Loader(data, decode=number_of, batch_size=10, addr=j.addr)
    called, seen = list[str](), Counter[int]()
    loader.on_stop(lambda: called.append(loader.over))
    for i, batch in enumerate(loader):
        seen.update(batch.tolist())
        if i == 4:  # the second task is finished with this batch
            end(loader.client.agent_pid)
            loader.stop()
    assert called == ["stop() was called"]
    assert list(loader) == []
    assert len(called) == 1
    loader.close()
    with tm.Client(j.addr) as client:
        for task in client.tasks():
            seen.update(number_of(r) for r in task)
    assert set(seen) == set(range(100))
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0)]


def until_ended(j: Job, number: int) -> dict[str, Any]:
    """Wait until an evaluation round has ended, and return it."""
    end = time.monotonic() + LIMIT
    while True:
        command = [MASTER, "evaluations", "--data-dir", str(j.directory / "etcd"), "-o", "json"]
        found: list[dict[str, Any]] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout or "[]")
        if len(found) == number and found[-1]["ended"]:
            return found[-1]
        assert time.monotonic() < end, found
        time.sleep(0.05)  # the round is in another process: there is nothing to wait on


def evaluated(j: Job, loader: tm.Loader) -> dict[str, Any]:
    """Train while an operator evaluates the trainer, and return the round."""
    rounds: list[dict[str, Any]] = []

    def operate() -> None:
        try:
            admin(j, "trainers", "evaluate", loader.client.id)
            rounds.append(until_ended(j, 1))
        finally:
            loader.stop()

    operator = threading.Thread(target=operate)
    operator.start()
    for _ in loader:
        time.sleep(0.01)  # a step
    operator.join()
    loader.close()
    return rounds[0]


def fails(batches: Iterator[Any]) -> dict[str, float]:
    raise KeyError("no metric")


def not_finite(batches: Iterator[Any]) -> dict[str, float]:
    return {"loss": float("nan")}


def no_dict(batches: Iterator[Any]) -> Any:
    return None


@pytest.mark.parametrize("case", ["before the loop", "in the loop", "while it waits", "fails", "not finite", "no dict"])
def test_model_is_evaluated_on_command(job: StartJob, tmp_path: pathlib.Path, case: str) -> None:
    """F520: before and during training, and while the trainer waits because another one has the last task."""
    (tmp_path / "held-out").mkdir()
    data, held_out = numbers(tmp_path, 100), numbers(tmp_path / "held-out", 110)
    passes = "1" if case == "while it waits" else "10000"
    j = job("--chunks-per-task", "1", "--session-ttl", "5s", "--evaluation-data", held_out, "--passes", passes)
    loader = tm.Loader(data, decode=number_of, batch_size=20, addr=j.addr, timeout=LIMIT)
    seen, sizes, main = Counter[int](), list[int](), threading.get_ident()

    def evaluate(batches: Iterator[Any]) -> dict[str, float]:
        assert threading.get_ident() == main
        found = 0
        for batch in batches:
            seen.update(batch.tolist())
            sizes.append(len(batch))
            found += sum(batch.tolist())
        return {"sum": float(found), "one": 1.0}

    loader.on_evaluate({"fails": fails, "not finite": not_finite, "no dict": no_dict}.get(case, evaluate))
    rounds: list[dict[str, Any]] = []

    def operate() -> None:
        try:
            if case != "before the loop":
                admin(j, "trainers", "evaluate", loader.client.id)
            rounds.append(until_ended(j, 1))
        finally:
            loader.stop()

    with tm.Client(j.addr, id="other") as other:
        next(other.tasks())
        operator = threading.Thread(target=operate)
        if case == "before the loop":
            admin(j, "trainers", "evaluate", loader.client.id)
        operator.start()
        for _ in loader:
            time.sleep(0.01)  # a step
        operator.join()
    loader.close()
    found = rounds[-1]
    assert found["trainer"] == loader.client.id, found
    if case == "fails":
        assert "KeyError: 'no metric'" in found["outcome"]
    elif case == "no dict":
        assert "on_evaluate: expected a dict of means by name, found None" in found["outcome"]
    elif case == "not finite":
        assert 'metric "loss": expected a finite number, found NaN' in found["outcome"]
    else:
        once_per_pass(seen, 110, 1)
        assert max(sizes) == 20
        assert found["results"] > 1
        assert found["figures"]["one"] == 1
    assert loader.over == "stop() was called"


def test_model_is_evaluated_after_the_end_of_the_agent(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F520: a round begins before the next session requests a task. The session has said that it evaluates."""
    (tmp_path / "held-out").mkdir()
    data, held_out = numbers(tmp_path, 100), numbers(tmp_path / "held-out", 110)
    j = job("--chunks-per-task", "1", "--evaluation-data", held_out, "--passes", "10000")
    loader = tm.Loader(data, decode=number_of, batch_size=20, addr=j.addr, timeout=LIMIT)
    loader.on_evaluate(lambda batches: {"records": float(sum(map(len, batches)))})
    rounds: list[dict[str, Any]] = []

    def operate() -> None:
        try:
            rounds.append(until_ended(j, 1))
        finally:
            loader.stop()

    operator = threading.Thread(target=operate)

    def evaluate_at_once() -> None:
        admin(j, "trainers", "evaluate", loader.client.id)
        operator.start()

    loader.client._on_restart.append(evaluate_at_once)
    for i, _ in enumerate(loader):
        if not i:
            end(loader.client.agent_pid)
    operator.join()
    loader.close()
    assert rounds[0]["results"] > 1, rounds


@pytest.mark.parametrize("keeps", ["some", "none"])
def test_evaluation_counts_the_records_that_the_function_received(job: StartJob, tmp_path: pathlib.Path, keeps: str) -> None:
    """F567: the share of records that decode skips differs between the tasks. A task of which it skips all has no part in the mean."""
    (tmp_path / "held-out").mkdir()
    data, held_out = numbers(tmp_path, 100), numbers(tmp_path / "held-out", 110, size=16)
    j = job("--chunks-per-task", "1", "--evaluation-data", held_out, "--passes", "10000")
    received: list[int] = []

    def kept(record: memoryview) -> Any:
        n, is_held_out = number_of(record), len(record) == 16
        return n if not is_held_out or (keeps == "some" and (n >= 90 or (n % 10 == 3 and n > 30))) else tm.SKIP

    def evaluate(batches: Iterator[Any]) -> dict[str, float]:
        found = [n for batch in batches for n in batch.tolist()]
        received.extend(found)
        return {"mean": sum(found) / len(found)}  # without records, it fails

    loader = tm.Loader(data, decode=kept, batch_size=4, addr=j.addr, timeout=LIMIT)
    loader.on_evaluate(evaluate)
    found = evaluated(j, loader)
    expected = [n for n in range(110) if n >= 90 or (n % 10 == 3 and n > 30)] if keeps == "some" else []
    assert sorted(received) == expected
    assert found["outcome"] == f"of trainer {loader.client.id}", found  # it has not failed
    assert found["figures"] == ({"mean": sum(expected) / len(expected)} if expected else {}), found


def test_next_loader_of_a_client_without_the_function_reports_an_error(job: StartJob, tmp_path: pathlib.Path) -> None:
    """The agent requests evaluations, since an earlier loader of the client evaluates. The training continues."""
    (tmp_path / "held-out").mkdir()
    data, held_out = numbers(tmp_path, 100), numbers(tmp_path / "held-out", 110)
    j = job("--chunks-per-task", "1", "--evaluation-data", held_out, "--passes", "10000")
    with tm.Client(j.addr, timeout=LIMIT) as client:
        first = tm.Loader(data, decode=number_of, batch_size=20, client=client)
        first.on_evaluate(lambda batches: {"records": float(sum(map(len, batches)))})
        next(iter(first))
        first.close()
        second = tm.Loader(data, decode=number_of, batch_size=20, client=client)
        found = evaluated(j, second)
    assert "the loader has no function on_evaluate" in found["outcome"], found
