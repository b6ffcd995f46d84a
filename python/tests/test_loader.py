"""The NumPy loader with real masters."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import pathlib
import pickle
import re
import resource
import signal
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lab import MASTER, Job, end, kill, number_of, numbers, once_per_pass

import trainmaster as tm
from trainmaster._agent import Chunks

StartJob = Callable[..., Job]


def parse(record: memoryview) -> tuple[Any, int]:
    return np.frombuffer(record, np.uint8)[:8], number_of(record)


def test_batches_are_arrays_and_passes_end_with_short_ones(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j, seen = numbers(tmp_path, 210), job("--passes", "3", "--chunks-per-task", "1"), Counter[int]()
    loader = tm.Loader(data, decode=parse, batch_size=32, addr=j.addr)
    passes = []
    for epoch in loader.passes():
        sizes = []
        for x, y in epoch:
            assert isinstance(x, np.ndarray)
            assert x.shape == (len(y), 8)
            seen.update(y.tolist())
            sizes.append(len(y))
        passes.append((epoch.number, sizes))
    assert passes == [(n, [32] * 6 + [18]) for n in (1, 2, 3)]
    loader.close()
    once_per_pass(seen, 210, 3)
    j.verify()


@pytest.mark.parametrize("how", ["done", "stop"])
def test_batch_that_passes_has_read_ahead_is_not_trained(job: StartJob, tmp_path: pathlib.Path, how: str) -> None:
    """F545."""
    data, j, seen = numbers(tmp_path, 200, shards=1), job("--passes", "2", "--chunks-per-task", "1"), Counter[int]()
    with tm.Client(j.addr) as client:
        loader = tm.Loader(data, decode=number_of, batch_size=25, client=client)
        passes = []
        for epoch in loader.passes():
            passes.append(epoch.number)
            for batch in epoch:
                seen.update(batch.tolist())
            if how == "stop":
                loader.stop()
                continue
            loader.done()
            break
        assert passes == [1]
        loader.close()
    with tm.Client(j.addr) as other:
        for task in other.tasks():
            seen.update(map(number_of, task))
    once_per_pass(seen, 200, 2)


def test_finish_does_not_wait_for_the_next_request(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F546: another trainer does not get a task that is finished, if this one is killed in the next task."""
    data, j = numbers(tmp_path, 200, shards=1, per_chunk=50), job("--chunks-per-task", "1")
    with tm.Client(j.addr) as client:
        loader = tm.Loader(data, decode=number_of, batch_size=20, client=client)
        batches = iter(loader)
        for _ in range(4):  # the third has the end of the first task
            next(batches)
        limit, done = time.monotonic() + 60, 0
        while not done:
            assert time.monotonic() < limit, "expected one finished task, found none"
            status = subprocess.run([MASTER, "status", "--addr", j.addr, "-o", "json"], capture_output=True, text=True, check=True)
            done = json.loads(status.stdout)["datasets"][0]["done"]
        assert done == 1


def test_loop_after_the_end_says_that_it_has_no_batches(job: StartJob, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """As the loop over epochs of a script that was written for another loader."""
    data, j = numbers(tmp_path, 100), job("--passes", "2")
    loader = tm.Loader(data, decode=number_of, batch_size=10, addr=j.addr)
    assert sum(len(batch) for batch in loader) == 200
    assert "no batches" not in caplog.text
    assert not list(loader)
    assert "the job has ended: this loop has no batches. A loop has the batches of all passes: set their number with --passes" in caplog.text
    loader.close()


def test_pass_that_is_left_is_an_error(job: StartJob, tmp_path: pathlib.Path) -> None:
    """Otherwise the rest of the pass would be taken for the next one."""
    data, j, seen = numbers(tmp_path, 100), job("--passes", "2", "--chunks-per-task", "1"), Counter[int]()
    loader = tm.Loader(data, decode=number_of, batch_size=10, addr=j.addr)
    with pytest.raises(tm.errors.InvalidError, match="passes: expected a loop over all batches of pass 1, found a loop that was left"):
        for n, epoch in enumerate(loader.passes()):
            assert n == 0, "the rest of the pass is the next one"
            for batch in epoch:
                seen.update(batch.tolist())
                loader.done()
                break
    for batch in loader:  # it continues
        seen.update(batch.tolist())
        if seen.total() >= 150:
            break
    for epoch in loader.passes():
        for _ in epoch:
            loader.stop()
            break
    assert loader.over == "stop() was called"
    loader.close()
    assert Counter(seen.values()) == {1: 50, 2: 50}


@pytest.mark.parametrize("window", [1, 4])
def test_shuffle(job: StartJob, tmp_path: pathlib.Path, window: int) -> None:
    data = numbers(tmp_path, 300, shards=1)
    orders = []
    for _ in range(2):
        j, order = job("--passes", "2", "--chunks-per-task", "2"), []
        loader = tm.Loader(data, decode=number_of, batch_size=16, shuffle=True, shuffle_window=window, seed=3, addr=j.addr)
        for batch in loader:
            order += batch.tolist()
        loader.close()
        j.verify()
        once_per_pass(Counter(order), 300, 2)
        orders.append(order)
    assert orders[0][:50] != sorted(orders[0][:50])
    assert orders[0][:300] != orders[0][300:]
    if window == 1:
        assert orders[0] == orders[1]
        assert len({n // 50 for n in orders[0][:50]}) == 1
    else:
        assert len({n // 50 for n in orders[0][:50]}) > 1


def test_decode_error_fails_its_task(job: StartJob, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    data, j, seen = numbers(tmp_path, 100, shards=1), job("--chunks-per-task", "1"), Counter[int]()

    def decode(record: memoryview) -> int:
        n = number_of(record)
        if n == 40:
            raise KeyError("forty")
        return n

    loader = tm.Loader(data, decode=decode, batch_size=100, addr=j.addr)
    for batch in loader:
        seen.update(batch.tolist())
    loader.close()
    assert {n for n, times in seen.items() if times == 1} == set(range(100)) - set(range(25, 50))
    assert not set(seen) & set(range(25, 50)), "the other records of the task are in the batch"
    text = j.log.read_text()
    assert loader.over == "job finished: all passes are done; tasks set aside, whose records were not trained: 1"
    assert f"the job has ended: {loader.over}" in caplog.text
    assert "record 15: decode: KeyError: 'forty'" in text
    assert "numbers-00000-of-00001: chunk at" in text
    j.stop()


def test_decode_batch_error_fails_the_task_to_blame(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j, seen = numbers(tmp_path, 100, shards=1), job("--chunks-per-task", "1"), Counter[int]()

    def decode_batch(records: list[memoryview]) -> list[int]:
        found = [number_of(r) for r in records]
        if 40 in found:
            raise KeyError("forty")
        return found

    loader = tm.Loader(data, decode_batch=decode_batch, batch_size=40, addr=j.addr)
    for batch in loader:
        seen.update(batch)
    loader.close()
    assert {n for n, times in seen.items() if times == 1} >= set(range(100)) - set(range(25, 50))
    assert 40 not in seen
    assert "decode_batch: KeyError: 'forty'" in j.log.read_text()
    j.stop()


def test_skipped_record_is_consumed(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j, seen = numbers(tmp_path, 100), job("--chunks-per-task", "1"), Counter[int]()
    loader = tm.Loader(data, decode=lambda r: number_of(r) if number_of(r) % 3 and number_of(r) > 50 else tm.SKIP, batch_size=4, addr=j.addr)
    for batch in loader:
        assert len(batch) > 0
        seen.update(batch.tolist())
    loader.close()
    once_per_pass(seen, len([n for n in range(100) if n % 3 and n > 50]), 1)
    assert j.verify()[0]["missing"] == 0


def test_skipped_records_have_no_weight(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F495: what the optimizer of parameter servers multiplies the mean of a batch by."""
    data, j = numbers(tmp_path, 100), job("--chunks-per-task", "1")
    loader = tm.Loader(data, decode=lambda r: number_of(r) if number_of(r) % 10 == 0 else tm.SKIP, batch_size=40, addr=j.addr)
    sizes = [(len(batch), loader.client._records_in_hand) for batch in loader]
    loader.close()
    assert sum(n for n, _ in sizes) == 10
    assert all(n == in_hand for n, in_hand in sizes), sizes
    j.verify()


def test_loop_over_a_closed_loader_is_refused(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F499: before the loop, and in it."""
    data, j = numbers(tmp_path, 100), job("--chunks-per-task", "1")
    for closed_in_loop in (False, True):
        loader = tm.Loader(data, decode=number_of, batch_size=10, addr=j.addr)
        iterator = iter(loader)
        if closed_in_loop:
            next(iterator)
        loader.close()
        with pytest.raises(tm.errors.InvalidError, match="loop: expected an open client, found a closed one"):
            next(iterator)


def test_batch_of_a_lost_session_comes_again(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent dies while the loop has a batch in hand, and the loop reports progress with each batch."""
    monkeypatch.setattr("trainmaster._sampler._PROGRESS", 0.0)
    data, j, seen = numbers(tmp_path, 100, shards=1), job("--chunks-per-task", "1"), Counter[int]()
    loader = tm.Loader(data, decode=number_of, batch_size=10, addr=j.addr)
    for i, batch in enumerate(loader):
        seen.update(batch.tolist())
        if i == 0:  # the first of the three batches with records of its task
            kill(loader.client.agent_pid)
            loader.client._agent.process.wait()  # its sockets are closed then
    assert loader.client.session == 2
    loader.close()
    assert set(seen) == set(range(100))
    assert {seen[n] for n in range(10)} == {2}
    assert j.verify()[0]["missing"] == 0


def test_batch_in_hand_is_given_again_unless_it_is_done(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 100, shards=1), job("--chunks-per-task", "1")
    loader = tm.Loader(data, decode=number_of, batch_size=10, addr=j.addr)
    first = next(iter(loader)).tolist()
    assert next(iter(loader)).tolist() == first
    for _ in loader:
        loader.done()
        loader.report(loss=0.5)
        break
    rest = [n for batch in loader for n in batch.tolist()]
    assert sorted(first + rest) == list(range(100))
    loader.close()
    j.verify()


def test_chunks_of_a_task_are_requested_ahead(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, j = numbers(tmp_path, 100, shards=1), job("--chunks-per-task", "4")
    reads, read = [], Chunks.read

    def noted(self: Chunks, chunk: Any, following: Any = None) -> Any:
        reads.append((chunk, following))
        return read(self, chunk, following)

    monkeypatch.setattr(Chunks, "read", noted)
    with contextlib.closing(tm.Loader(data, decode=number_of, batch_size=10, addr=j.addr)) as loader:
        assert [n for batch in loader for n in batch.tolist()] == list(range(100))
    chunks = [chunk for chunk, _ in reads]
    assert reads == list(itertools.zip_longest(chunks, chunks[1:]))
    assert len(chunks) == 4
    j.verify()


def test_damaged_chunk_fails_its_task(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 100, shards=1), job("--chunks-per-task", "1")
    loader = tm.Loader(data, decode=number_of, batch_size=10, addr=j.addr)
    path = pathlib.Path(next(tmp_path.glob("numbers-*")))
    content = bytearray(path.read_bytes())
    size = struct.unpack_from("<5I", content)[3]
    content[2 * (20 + size) + 30] ^= 1  # in the third chunk
    times = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # so that the file does not count as replaced
    seen = Counter(n for batch in loader for n in batch.tolist())
    loader.close()
    assert not set(seen) & set(range(50, 75))
    assert "checksum" in j.log.read_text()
    j.stop()


def test_replaced_file_fails_the_job(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 100, shards=1), job("--chunks-per-task", "1")
    loader = tm.Loader(data, decode=number_of, batch_size=10, addr=j.addr)
    numbers(tmp_path, 100, shards=1, force=True)
    with pytest.raises(tm.errors.JobFailedError, match="counted nothing"):
        list(loader)
    loader.close()
    assert "the file was replaced since it was listed" in j.log.read_text()


def test_agent_that_is_killed_costs_no_count(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j, seen = numbers(tmp_path, 300), job("--passes", "2", "--chunks-per-task", "1"), Counter[int]()
    loader = tm.Loader(data, decode=number_of, batch_size=10, addr=j.addr)
    for n, batch in enumerate(loader):
        seen.update(batch.tolist())
        if n in (5, 20):
            kill(loader.client.agent_pid)
    loader.close()
    assert len(seen) == 300
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0), (0, 0)]


def test_session_that_is_lost_costs_no_count(job: StartJob, tmp_path: pathlib.Path) -> None:
    """The agent is stopped for longer than the TTL of its session, and continues: its tasks are with the queue again."""
    data, j, seen = numbers(tmp_path, 200), job("--passes", "2", "--chunks-per-task", "1", "--session-ttl", "3s"), Counter[int]()
    loader = tm.Loader(data, decode=number_of, batch_size=10, addr=j.addr)
    for n, batch in enumerate(loader):
        seen.update(batch.tolist())
        if n == 3:
            agent = loader.client.agent_pid
            os.kill(agent, signal.SIGSTOP)
            j.await_log("trainer lost", 1)
            os.kill(agent, signal.SIGCONT)
    assert loader.client.session >= 2
    loader.close()
    assert len(seen) == 200
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0), (0, 0)]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_loss_that_is_not_finite_costs_no_record(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, loss: float) -> None:
    monkeypatch.setattr("trainmaster._sampler._PROGRESS", 0)
    data, j, seen = numbers(tmp_path, 100), job("--chunks-per-task", "1"), Counter[int]()
    loader = tm.Loader(data, decode=number_of, batch_size=10, addr=j.addr)
    for batch in loader:
        seen.update(batch.tolist())
        assert seen.total() <= 100
        loader.report(loss=loss)
    assert loader.client.session == 1
    with pytest.raises(tm.errors.InvalidError, match=r"expected finite numbers, found a\.1 nan"):
        loader.client._link.post("progress", a=[1, math.nan])
    loader.close()
    once_per_pass(seen, 100, 1)
    j.verify()


def test_agent_that_is_killed_in_a_step_does_not_end_the_loop(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster._sampler._PROGRESS", 0)  # progress is due after each step
    data, j, seen = numbers(tmp_path, 100), job("--chunks-per-task", "1"), Counter[int]()
    loader = tm.Loader(data, decode=number_of, batch_size=10, addr=j.addr)
    for n, batch in enumerate(loader):
        seen.update(batch.tolist())
        if n == 2:
            end(loader.client.agent_pid)
    assert loader.client.session == 2
    loader.close()
    assert len(seen) == 100
    assert j.verify()[0]["missing"] == 0


@pytest.mark.parametrize("what", ["parameter server", "master"])
def test_exception_in_a_restart_loses_no_record(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Two faults: the agent is killed, and nothing answers when another session begins. The loop begins again."""
    data, j, seen = numbers(tmp_path, 200), job("--chunks-per-task", "1"), Counter[int]()
    loader = tm.Loader(data, decode=number_of, batch_size=10, addr=j.addr)
    calls: list[int] = []

    def fail_once() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise tm.errors.MasterTimeoutError(f"no {what} answers")

    loader.client._on_restart.append(fail_once)
    if what == "master":
        loader.client._on_restart.clear()
        start = loader.client._start

        def start_later() -> Any:
            fail_once()
            return start()

        monkeypatch.setattr(loader.client, "_start", start_later)
        monkeypatch.setattr("trainmaster._commands._PERIOD", 0)  # the next loop asks for commands first
    with pytest.raises(tm.errors.MasterTimeoutError):
        for n, batch in enumerate(loader):
            seen.update(batch.tolist())
            if n == 6:
                end(loader.client.agent_pid)
    for batch in loader:
        seen.update(batch.tolist())
    loader.close()
    assert len(calls) == 2, "what belongs to a session has not begun again"
    assert len(seen) == 200
    assert j.verify()[0]["missing"] == 0


@pytest.mark.parametrize("first", ["loader", "tasks"])
def test_next_loader_of_a_client_has_the_tasks_of_the_last_one(job: StartJob, tmp_path: pathlib.Path, first: str) -> None:
    data, j, seen = numbers(tmp_path, 100), job("--passes", "2", "--chunks-per-task", "1"), Counter[int]()
    with tm.Client(j.addr) as client:
        if first == "tasks":
            client.report_dataset(data)
            for i, task in enumerate(client.tasks()):
                if i == 2:
                    break
                seen.update(number_of(r) for r in task)
        for batches in (4, 5, 1000):
            loader = tm.Loader(data, decode=number_of, batch_size=10, client=client)
            for i, batch in enumerate(loader):
                if i == batches:
                    break
                seen.update(batch.tolist())
            loader.close()
        assert not list(client.tasks())
    assert {2} <= set(seen.values()) <= {2, 3, 4}  # the tasks that were begun are trained from their beginning
    assert [(p["missing"], p["redelivered"]) for p in j.verify()] == [(0, 0), (0, 0)]


def test_finishes_are_reported_once(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, j, reported = numbers(tmp_path, 400), job("--chunks-per-task", "1"), Counter[int]()
    loader = tm.Loader(data, decode=number_of, batch_size=25, addr=j.addr)
    send = loader.client._link._send

    def count(fields: Any) -> None:
        reported.update(fields.get("finished", ()))
        send(fields)

    monkeypatch.setattr(loader.client._link, "_send", count)
    assert sum(len(batch) for batch in loader) == 400
    loader.close()
    assert set(reported.values()) == {1}
    assert len(reported) == 16


def test_exception_before_a_failure_is_reported_keeps_its_task(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, or a master that does not answer. The loop that begins again reports the failure."""
    data, j, seen = numbers(tmp_path, 100, shards=1), job("--chunks-per-task", "1"), Counter[int]()
    loader = tm.Loader(data, decode=lambda r: 1 // (number_of(r) != 40) and number_of(r), batch_size=25, addr=j.addr)
    report, raised = loader.client._fail_work, False

    def interrupted(number: int, text: str) -> None:
        nonlocal raised
        if not raised:
            raised = True
            raise KeyboardInterrupt
        report(number, text)

    monkeypatch.setattr(loader.client, "_fail_work", interrupted)
    with pytest.raises(KeyboardInterrupt):
        for batch in loader:
            seen.update(batch.tolist())
            loader.done()
    for batch in loader:
        seen.update(batch.tolist())
    loader.close()
    assert set(seen) == set(range(100)) - set(range(25, 50))
    assert set(seen.values()) == {1}
    assert "timed out" not in j.log.read_text()
    j.stop()


def test_lack_of_descriptors_ends_the_loop_and_fails_no_task(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 320, shards=1, per_chunk=1), job("--chunks-per-task", "32")
    loader = tm.Loader(data, decode=number_of, batch_size=10, shuffle=True, shuffle_window=8, addr=j.addr)
    agent, seen = loader.client.agent_pid, Counter[int]()
    before = resource.prlimit(agent, resource.RLIMIT_NOFILE)
    resource.prlimit(agent, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{agent}/fd")) + 40, before[1]))
    with pytest.raises(tm.errors.ResourceError, match="chunk: expected shared memory of 1 MiB, found too many open files: use fewer workers"):
        for batch in loader:
            seen.update(batch.tolist())
            loader.done()
    resource.prlimit(agent, resource.RLIMIT_NOFILE, before)
    for batch in loader:
        seen.update(batch.tolist())
    loader.close()
    once_per_pass(seen, 320, 1)
    assert j.verify()[0]["redelivered"] == 0


def test_lack_of_a_descriptor_for_the_connection_ends_the_loop(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 100), job("--chunks-per-task", "1")
    loader = tm.Loader(data, decode=number_of, batch_size=10, addr=j.addr)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unused = os.dup(0)
    os.close(unused)
    resource.setrlimit(resource.RLIMIT_NOFILE, (unused, hard))
    try:
        with pytest.raises(tm.errors.ResourceError, match=r"connection to the agent: expected a file descriptor, found none .*: use fewer workers"):
            next(iter(loader))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sum(len(batch) for batch in loader) == 100
    loader.close()
    j.verify()


def test_mapped_chunks_stay_below_the_limit_of_open_files(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 640, shards=1, per_chunk=1), job("--chunks-per-task", "32")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        loader = tm.Loader(data, decode=number_of, batch_size=10, shuffle=True, shuffle_window=16, addr=j.addr)
        seen = Counter(n for batch in loader for n in batch.tolist())
        loader.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    once_per_pass(seen, 640, 1)
    j.verify()


def test_loop_of_another_thread_is_refused(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F544: a thread is in the loop, where it reads a record."""
    data, j = numbers(tmp_path, 100), job("--chunks-per-task", "1")
    reads, may_go_on, seen = threading.Event(), threading.Event(), Counter[int]()

    def slow(record: memoryview) -> int:
        reads.set()
        assert may_go_on.wait(60)
        return number_of(record)

    with contextlib.closing(tm.Loader(data, decode=slow, batch_size=10, addr=j.addr)) as loader:
        other = threading.Thread(target=lambda: seen.update(n for batch in loader for n in batch.tolist()))
        other.start()
        assert reads.wait(60)
        with pytest.raises(RuntimeError, match="loader: expected a loop in one thread, found another thread in it"):
            next(iter(loader))
        may_go_on.set()
        other.join()
    once_per_pass(seen, 100, 1)
    j.verify()


def test_failures_of_all_tasks_are_logged_a_few_times(job: StartJob, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    data, j = numbers(tmp_path, 1000), job("--chunks-per-task", "1")
    loader = tm.Loader(data, decode=lambda r: r[100], batch_size=25, addr=j.addr)
    with contextlib.closing(loader), pytest.raises(tm.errors.JobFailedError):
        list(loader)
    lines = [r.getMessage() for r in caplog.records if "a task failed" in r.getMessage()]
    assert [re.findall(r"\(failure (\d+) ", line)[0] for line in lines] == [*map(str, range(1, 9)), "16", "32", "64", "128"]  # 40 tasks, 4 times
    assert sum("Traceback" in line for line in lines) == 1
    j.stop()


def test_batch_that_is_skipped_is_consumed(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 100), job("--chunks-per-task", "1")

    def upper(records: list[memoryview]) -> Any:
        return tm.SKIP if number_of(records[0]) < 50 else [number_of(r) for r in records]

    with contextlib.closing(tm.Loader(data, decode_batch=upper, batch_size=25, addr=j.addr)) as loader:
        assert sorted(n for batch in loader for n in batch) == list(range(50, 100))
    j.verify()


@pytest.mark.parametrize(
    ("decode", "text"),
    [
        (lambda _: None, "samples: expected numbers, arrays, text, or tuples and dicts of them, found NoneType: return tm.SKIP"),
        (lambda r: number_of(r) if number_of(r) % 2 else "even", "samples: expected one form in a batch, found numbers or arrays and str"),
        (lambda r: {f"x{number_of(r) % 2}": 1}, r"samples: expected one form in a batch, found a dict with \['x0'\] and a dict with \['x1'\]"),
        (lambda r: (1,) * (1 + number_of(r) % 2), "samples: expected one form in a batch, found a tuple of 1 and a tuple of 2"),
    ],
)
def test_samples_that_do_not_stack_are_explained(job: StartJob, tmp_path: pathlib.Path, decode: Callable[[memoryview], Any], text: str) -> None:
    loader = tm.Loader(numbers(tmp_path, 100, shards=1), decode=decode, batch_size=10, addr=job().addr)
    with contextlib.closing(loader), pytest.raises((TypeError, ValueError), match=text):
        next(iter(loader))


def test_bad_input_is_explained(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 100), job()
    with pytest.raises(ValueError, match="batch_size: expected a whole number of at least 1, found 0"):
        tm.Loader(data, batch_size=0, addr=j.addr)
    with pytest.raises(ValueError, match="batch_size: expected a whole number of at least 1, found None"):
        tm.Loader(data, batch_size=None, addr=j.addr)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="decode: expected a function, found 'len'"):
        tm.Loader(data, decode="len", addr=j.addr)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="collate, decode_batch: expected one of them, found both"):
        tm.Loader(data, collate=list, decode_batch=list, addr=j.addr)
    with pytest.raises(ValueError, match="decode, decode_batch: expected one of them, found both"):
        tm.Loader(data, decode=parse, decode_batch=list, addr=j.addr)
    with pytest.raises(ValueError, match="shuffle_window: expected a whole number of at least 1, found 0"):
        tm.Loader(data, shuffle=True, shuffle_window=0, addr=j.addr)
    with pytest.raises(ValueError, match="shuffle_window: expected shuffle=True with it, found shuffle_window=8 without shuffle"):
        tm.Loader(data, shuffle_window=8, addr=j.addr)
    with tm.Client(j.addr) as client:
        client.report_dataset(data)
        (tmp_path / "other").write_bytes(pathlib.Path(next(tmp_path.glob("numbers-*"))).read_bytes())
        with pytest.raises(tm.errors.InvalidError, match="another dataset was reported first"):
            tm.Loader(str(tmp_path / "other"), addr=j.addr)
        loader = tm.Loader(data, client=client)
        for loss in ("x", "0.5", None):
            with pytest.raises(TypeError, match=f"loss: expected a number, found {loss!r}"):
                loader.report(loss=loss)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="loader: expected it in the process that made it, found pickle or copy"):
            pickle.dumps(loader)
        with pytest.raises(TypeError, match="on_stop: expected a function, found 1"):
            loader.on_stop(1)  # type: ignore[arg-type]
        with pytest.raises(tm.errors.InvalidError, match="client: expected no other loader with it, found an open one"):
            tm.Loader(data, client=client)
        loader.close()
        tm.Loader(data, client=client).close()


def test_bad_arguments_are_explained(job: StartJob, tmp_path: pathlib.Path) -> None:
    """Before a session begins."""
    data, addr = numbers(tmp_path, 100), "127.0.0.1:1"
    bad: list[tuple[str, Any, str]] = [
        ("seed", None, "expected a whole number from 0 to 9223372036854775807, found None"),
        ("seed", 1.5, "expected a whole number from 0 to"),
        ("seed", 1 << 70, "expected a whole number from 0 to"),
        ("shuffle", "yes", "expected True or False, found 'yes'"),
        ("shuffle", np.array([1, 2]), "expected True or False, found array([1, 2])"),
        ("batch_size", True, "expected a whole number of at least 1, found True"),
        ("timeout", "x", "expected a number of seconds, found 'x'"),
        ("timeout", 0, "expected more than 0 seconds, found 0"),
        ("client", 5, "expected a trainmaster.Client, found 5"),
    ]
    for name, value, text in bad:
        arguments: dict[str, Any] = {"addr": None if name == "client" else addr, name: value}
        with pytest.raises((TypeError, ValueError), match=f"^{name}: {re.escape(text)}"):
            tm.Loader(data, **arguments)
    with pytest.raises(TypeError, match="paths: expected a path, glob or URL, or a list of them, found 5"):
        tm.Loader(5, addr=addr)  # type: ignore[arg-type]
    with tm.Client(job("--chunks-per-task", "1").addr) as client:
        with pytest.raises(ValueError, match="addr, client: expected one of them, found both"):
            tm.Loader(data, client=client, addr=addr)
        with pytest.raises(ValueError, match="job, client: expected one of them, found both"):
            tm.Loader(data, client=client, job="default")
        loader = tm.Loader(data, decode=lambda r: np.zeros(number_of(r) // 2 % 2), batch_size=2, shuffle=None, client=client)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"samples: expected one shape in a batch, found \(0,\) and \(1,\): pad them, or give collate="):
            next(iter(loader))
