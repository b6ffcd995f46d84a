"""The DataLoader with real masters and real worker processes."""

from __future__ import annotations

import fcntl
import gc
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import pathlib
import resource
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from lab import Job, ends, kill, number_of, numbers, once_per_pass
from torch.utils.data._utils import signal_handling

import trainmaster as tm
from trainmaster.torch import _dataloader

StartJob = Callable[..., Job]
METHODS = ("fork", "spawn", "forkserver")
KILLED = ("fork", "spawn", pytest.param("forkserver", marks=pytest.mark.long))


def parse(record: memoryview) -> Any:
    return torch.tensor(number_of(record))


def whole(records: list[memoryview]) -> list[bytes]:
    return [bytes(r) for r in records]


def fails_at_40(record: memoryview) -> Any:
    if number_of(record) == 40:
        raise KeyError("forty")
    return torch.tensor(number_of(record))


def dies_at_40(record: memoryview) -> Any:
    if number_of(record) == 40:
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.tensor(number_of(record))


def skips(record: memoryview) -> Any:
    return tm.SKIP if number_of(record) % 2 else torch.tensor(number_of(record))


class Garbage:
    """A cycle of references. Its destructor ends the process, in a fork."""

    def __init__(self) -> None:
        self.cycle, self.owner = self, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.owner:
            os._exit(1)


def collects(record: memoryview) -> Any:
    gc.collect()
    return torch.tensor(number_of(record))


@pytest.mark.parametrize("loaders", ["one loader", "two loaders"])
def test_garbage_of_the_script_stays_in_its_workers(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, loaders: str) -> None:
    """F554: the destructor of a process group of gloo waits for its threads, which a fork does not copy. Two threads may start workers."""
    data, j = numbers(tmp_path, 100), job()
    start = multiprocessing.process.BaseProcess.start

    def after_another(process: multiprocessing.process.BaseProcess) -> None:
        with _dataloader._watch.start():
            pass
        start(process)

    if loaders == "two loaders":
        monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", after_another)
    Garbage()
    gc.disable()
    try:
        loader = tm.torch.DataLoader(data, decode=collects, batch_size=10, num_workers=1, multiprocessing_context="fork", addr=j.addr)
        assert sum(len(b) for b in loader) == 100
        loader.close()
    finally:
        gc.enable()


def test_worker_ends_although_its_script_was_killed_before_its_start(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F563: the worker has the output of the script, whose end the test waits for."""
    script = """
import os, sys, time, trainmaster as tm

def end_parent():
    parent = os.getppid()
    os.kill(parent, 9)
    while os.getppid() == parent:
        time.sleep(0.01)

if __name__ == "__main__":
    loader = tm.torch.DataLoader(sys.argv[1], decode=len, num_workers=1, multiprocessing_context="fork", addr=sys.argv[2])
    os.register_at_fork(after_in_child=end_parent)
    next(iter(loader))
"""
    data, addr = numbers(tmp_path, 100), job().addr
    done = subprocess.run([sys.executable, "-c", script, data, addr], stdout=subprocess.PIPE, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("method", "workers"), [("fork", 0), *((m, 2) for m in METHODS)])
def test_each_record_once_per_pass(job: StartJob, tmp_path: pathlib.Path, method: str, workers: int) -> None:
    data, j, seen = numbers(tmp_path, 700), job("--passes", "3", "--chunks-per-task", "1"), Counter[int]()
    more: dict[str, Any] = {"multiprocessing_context": method} if workers else {}
    loader = tm.torch.DataLoader(data, decode=parse, batch_size=64, num_workers=workers, addr=j.addr, **more)
    passes = []
    for epoch in loader.passes():
        sizes = []
        for batch in epoch:
            seen.update(batch.tolist())
            sizes.append(len(batch))
        passes.append((epoch.number, sum(sizes)))
    assert passes == [(1, 700), (2, 700), (3, 700)]
    loader.close()
    once_per_pass(seen, 700, 3)
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0)] * 3


class Sample(NamedTuple):
    """What a script's collate_fn can make."""

    kinds: dict[str, Any]
    shared: list[torch.Tensor]
    names: tuple[str, ...]


def tensors() -> dict[str, torch.Tensor]:
    """Tensors of all kinds, with storages below and above the size whose content goes through the pipe of the workers."""
    wide = torch.arange(120_000, dtype=torch.float64)
    return {
        "scalar": torch.tensor(7),
        "empty": torch.empty(0, 3),
        "bool": torch.tensor([True, False]),
        "bfloat16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "complex": torch.tensor([1 + 2j, 3 - 4j]),
        "transposed": torch.arange(6).reshape(2, 3).T,
        "column": torch.arange(6).reshape(3, 2)[:, 1],
        "expanded": torch.ones(1).expand(3),
        "channels_last": torch.ones(2, 2, 2, 2).to(memory_format=torch.channels_last),
        "part": wide[10:20],
        "large": wide,
        "sparse": torch.eye(3).to_sparse(),
        "gradient": torch.ones(2, requires_grad=True),
    }


def all_kinds(items: list[Any]) -> Sample:
    first = torch.tensor(items)
    return Sample(tensors(), [first, first, first[:1]], ("a", "b"))


@pytest.mark.parametrize("method", METHODS)
def test_batches_of_workers_are_what_collate_made(job: StartJob, tmp_path: pathlib.Path, method: str) -> None:
    loader = tm.torch.DataLoader(
        numbers(tmp_path, 100),
        decode=number_of,
        collate_fn=all_kinds,
        batch_size=10,
        num_workers=2,
        multiprocessing_context=method,
        addr=job("--passes", "1").addr,
    )
    found = []
    for kinds, shared, names in loader:
        assert (names, shared[0] is shared[1]) == (("a", "b"), True)
        found += shared[0].tolist()
        shared[2].fill_(-1)  # a view of the same memory
        assert shared[0][0] == -1
        shared[0].detach_()  # which is no view
        for name, expected in tensors().items():
            t = kinds[name]
            assert all(getattr(t, kind) == getattr(expected, kind) for kind in ("dtype", "shape", "layout", "requires_grad")), name
            assert name == "sparse" or t.stride() == expected.stride(), name
            assert torch.equal(*(x.to_dense() if name == "sparse" else x for x in (t, expected))), name
        kinds["transposed"] += 1  # a script can change its batch
        assert kinds["large"].is_shared()
        assert not kinds["column"].is_shared()
    assert sorted(found) == list(range(100))


def test_loss_with_a_gradient_is_reported_without_a_warning(job: StartJob, tmp_path: pathlib.Path) -> None:
    loader: Any = tm.torch.DataLoader(numbers(tmp_path, 10), addr=job().addr)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.report(loss=torch.tensor(1.0, requires_grad=True))
        loader.report(loss=1)
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_small_tasks_fill_batches(job: StartJob, tmp_path: pathlib.Path, workers: int) -> None:
    """Each batch of 64 records has those of 16 tasks."""
    data, j = numbers(tmp_path, 656, per_chunk=4), job("--passes", "2", "--chunks-per-task", "1")
    loader = tm.torch.DataLoader(data, decode=parse, batch_size=64, num_workers=workers, addr=j.addr)
    assert [[len(batch) for batch in epoch] for epoch in loader.passes()] == [[64] * 10 + [16]] * 2
    loader.close()
    assert [(p["tasks"], p["missing"], p["counted_twice"]) for p in j.verify()] == [(164, 0, 0)] * 2


@pytest.mark.parametrize("batch_size", [7, 1500])
def test_trainers_share_passes(job: StartJob, tmp_path: pathlib.Path, batch_size: int) -> None:
    """Three trainers with batches in flight pass the barriers: no sampler waits with a batch in flight."""
    data, j = numbers(tmp_path, 600), job("--passes", "3", "--chunks-per-task", "1")
    script = tmp_path / "trainer.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys, torch, trainmaster as tm
            def parse(r): return int.from_bytes(r[:8], "little")
            loader = tm.torch.DataLoader({data!r}, decode=parse, batch_size={batch_size}, num_workers=2, multiprocessing_context="fork", timeout=60)
            print("joined", flush=True)
            sys.stdin.readline()  # until all have joined
            for batch in loader:
                print(*batch.tolist(), flush=True)
            """
        )
    )
    environment = {**os.environ, "TRAINMASTER_ADDR": j.addr}
    pipe = subprocess.PIPE
    trainers = [subprocess.Popen([sys.executable, str(script)], stdin=pipe, stdout=pipe, text=True, env=environment) for _ in range(3)]
    for t in trainers:
        assert t.stdout
        assert t.stdout.readline() == "joined\n"
    for t in trainers:
        assert t.stdin
        t.stdin.write("go\n")
        t.stdin.flush()
    seen = Counter[int]()
    for t in trainers:
        out, _ = t.communicate(timeout=300)
        assert t.returncode == 0
        seen.update(int(n) for n in out.split())
    once_per_pass(seen, 600, 3)
    j.verify()


@pytest.mark.parametrize("method", KILLED)
def test_killed_workers_are_replaced(job: StartJob, tmp_path: pathlib.Path, method: str) -> None:
    """Batches of 64 KB: a worker is killed while it writes one into the queue of results, and the reader does not wait forever."""
    data, j, seen = numbers(tmp_path, 3000, size=1024), job("--chunks-per-task", "4"), Counter[int]()
    loader = tm.torch.DataLoader(data, decode_batch=whole, batch_size=64, num_workers=2, multiprocessing_context=method, addr=j.addr)
    victims = [5, 20, 35]
    for n, batch in enumerate(loader):
        seen.update(number_of(r) for r in batch)
        if n in victims:
            kill(loader.worker_pids[n % 2])
            if n == victims[-1]:
                time.sleep(0.3)  # it dies outside of next(): torch's handler would raise here
    assert loader.rebuilt == len(victims)
    loader.close()
    once_per_pass(seen, 3000, 1)
    j.verify()


@pytest.mark.parametrize("method", METHODS)
def test_worker_that_is_killed_in_a_message_does_not_block_the_loop(job: StartJob, tmp_path: pathlib.Path, method: str) -> None:
    """A message of 1 MB does not fit the pipe: the worker stands in the middle of it until the loop reads."""

    class Loader(tm.torch.DataLoader):
        def _build(self) -> Any:
            self.iterator = super()._build()
            return self.iterator

        def await_full_pipe(self) -> None:
            pipe = self.iterator._worker_result_queue._reader.fileno()
            full = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) - 4096  # the last page can have room for a smaller part
            end = time.monotonic() + 240
            while struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"....")) < (full,):
                assert time.monotonic() < end
                time.sleep(0.01)  # there is nothing to wait on

    data, j, seen = numbers(tmp_path, 4000, size=4096, per_chunk=100), job("--chunks-per-task", "10"), Counter[int]()
    loader = Loader(data, decode_batch=whole, batch_size=256, num_workers=2, multiprocessing_context=method, addr=j.addr)
    for n, batch in enumerate(loader):
        seen.update(number_of(r) for r in batch)
        if n == 3:
            loader.await_full_pipe()
            for pid in loader.worker_pids:
                kill(pid)
            for worker in loader._workers:  # a worker that is killed ends its message first, if the loop reads meanwhile
                assert multiprocessing.connection.wait([worker.sentinel], 240)
    assert loader.rebuilt >= 1
    loader.close()
    once_per_pass(seen, 4000, 1)
    j.verify()


def test_unknown_arguments_are_refused_before_a_master_is_asked() -> None:
    with pytest.raises(TypeError, match=r"batchsize, shufle: expected the arguments of trainmaster\.torch\.DataLoader, or of torch's, found other"):
        tm.torch.DataLoader(addr="127.0.0.1:1", batchsize=4, shufle=True)


def arrays(records: list[memoryview]) -> Any:
    return np.frombuffer(records[0], np.uint8)


def test_arrays_of_workers_can_be_written(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 20), job()
    loader = tm.torch.DataLoader(data, decode_batch=arrays, batch_size=10, num_workers=1, addr=j.addr)
    for batch in loader:
        np.add(batch, 1, out=batch)
    loader.close()
    j.verify()


class KilledAtAWrite:
    """Makes batches, and kills its worker after the first write of the first of them."""

    def __init__(self, was: pathlib.Path) -> None:
        self.was = was

    def __call__(self, items: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        send = multiprocessing.connection.Connection._send  # type: ignore[attr-defined]

        def send_and_die(connection: Any, content: bytes) -> None:
            send(connection, content)
            kill(os.getpid())

        if not self.was.exists():
            self.was.touch()
            multiprocessing.connection.Connection._send = send_and_die  # type: ignore[attr-defined]
        return torch.tensor(items), torch.zeros(10_000)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_that_is_killed_at_a_write_blocks_no_thread(job: StartJob, tmp_path: pathlib.Path, method: str) -> None:
    """F517: no signal interrupts the loop, which is in another thread."""
    data, j, seen = numbers(tmp_path, 200), job(), Counter[int]()
    arguments: dict[str, Any] = {"batch_size": 10, "num_workers": 1, "multiprocessing_context": method, "addr": j.addr}
    loader = tm.torch.DataLoader(data, decode=number_of, collate_fn=KilledAtAWrite(tmp_path / "killed"), **arguments)
    loop = threading.Thread(target=lambda: seen.update(n for batch, _ in loader for n in batch.tolist()), daemon=True)
    loop.start()
    loop.join(240)
    assert not loop.is_alive()
    assert loader.rebuilt == 1
    loader.close()
    once_per_pass(seen, 200, 1)
    j.verify()


SLOW = """
import time
import torch
import trainmaster as tm

def large(items):
    return [torch.full((50_000,), float(i)) for i in range(10)]

if __name__ == "__main__":
    with tm.Client() as client:
        loader = tm.torch.DataLoader("numbers-*", decode=len, collate_fn=large, batch_size=10, num_workers=2, client=client)
        for _ in loader:
            time.sleep(1)  # the workers draw ahead
            print(*loader.worker_pids, flush=True)
            time.sleep(1000)
"""


def test_workers_end_with_a_script_that_is_killed(tmp_path: pathlib.Path) -> None:
    """F510: a worker whose message does not fit the pipe would wait for ever, since the other workers could read it."""
    numbers(tmp_path, 1000)
    (tmp_path / "slow.py").write_text(SLOW)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRAINMASTER_") or k == "TRAINMASTER_BIN"}
    script = subprocess.Popen([sys.executable, "slow.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert script.stdout is not None
        workers = [int(pid) for pid in script.stdout.readline().split()]
        assert len(workers) == 2
    finally:
        script.kill()
        script.wait()
    for worker in workers:
        ends(worker)


def exits_at_40(record: memoryview) -> Any:
    """A library can end the process with any code."""
    if number_of(record) == 40:
        os._exit(1)
    return torch.tensor(number_of(record))


@pytest.mark.parametrize("decode", [dies_at_40, exits_at_40])
def test_worker_that_always_dies_ends_the_loop(job: StartJob, tmp_path: pathlib.Path, decode: Any) -> None:
    data, j = numbers(tmp_path, 100, shards=1), job("--chunks-per-task", "1")
    loader = tm.torch.DataLoader(data, decode=decode, batch_size=10, num_workers=1, multiprocessing_context="fork", addr=j.addr)
    seen = Counter[int]()
    with pytest.raises(RuntimeError, match="workers died 4 times at the same batch"):
        for batch in loader:
            seen.update(batch.tolist())
    assert set(seen.values()) == {1}
    assert 40 not in seen
    loader.close()


class InterruptedProcess(multiprocessing.context.ForkProcess):
    """A process that gets SIGINT before it runs its function."""

    def run(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        super().run()


class InterruptedContext(multiprocessing.context.ForkContext):
    """Its processes are interrupted at their start."""

    Process = InterruptedProcess


def is_interruptible() -> bool:
    return signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_worker_that_is_interrupted_at_its_start_goes_on(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal sends SIGINT to all processes, and torch ignores it only later."""
    data, j = numbers(tmp_path, 100), job("--chunks-per-task", "1")
    loader = tm.torch.DataLoader(data, decode=parse, batch_size=10, num_workers=2, multiprocessing_context=InterruptedContext(), addr=j.addr)
    draws: list[bool] = []
    draw = loader._sampler.draw

    def noted() -> Any:
        draws.append(is_interruptible())
        return draw()

    monkeypatch.setattr(loader._sampler, "draw", noted)
    seen = Counter(n for batch in loader for n in batch.tolist())
    assert loader.rebuilt == 0
    assert all(draws)
    loader.close()
    once_per_pass(seen, 100, 1)


def test_lack_of_processes_leaves_a_loop_that_ctrl_c_ends(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: object) -> None:
        raise BlockingIOError("no further process")

    monkeypatch.setattr(InterruptedProcess, "start", start)
    j = job()
    loader = tm.torch.DataLoader(numbers(tmp_path, 10), decode=parse, num_workers=2, multiprocessing_context=InterruptedContext(), addr=j.addr)
    with pytest.raises(BlockingIOError, match="no further process"):
        next(iter(loader))
    assert is_interruptible()
    loader.close()
    j.stop()


def test_worker_that_dies_while_others_start_is_replaced(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two steps torch's handler of SIGCHLD raises for the worker."""
    killed: list[int] = []
    before = signal_handling._set_worker_pids

    def kill_one(loader_id: int, pids: tuple[int, ...]) -> None:
        before(loader_id, pids)
        if not killed:
            killed.append(pids[0])
            ended = os.pidfd_open(pids[0])
            os.kill(pids[0], signal.SIGKILL)
            multiprocessing.connection.wait([ended])
            os.close(ended)

    monkeypatch.setattr(signal_handling, "_set_worker_pids", kill_one)
    data, j = numbers(tmp_path, 100), job("--chunks-per-task", "1")
    loader = tm.torch.DataLoader(data, decode=parse, batch_size=10, num_workers=2, multiprocessing_context="fork", addr=j.addr)
    seen = Counter(n for batch in loader for n in batch.tolist())
    assert loader.rebuilt == 1
    loader.close()
    once_per_pass(seen, 100, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_decode_error_fails_its_task(job: StartJob, tmp_path: pathlib.Path, workers: int) -> None:
    data, j = numbers(tmp_path, 200, shards=1), job("--chunks-per-task", "1")
    loader = tm.torch.DataLoader(data, decode=fails_at_40, batch_size=25, num_workers=workers, addr=j.addr)
    seen = Counter(n for batch in loader for n in batch.tolist())
    loader.close()
    assert {n for n in seen if seen[n] == 1} == set(range(200)) - set(range(25, 50))
    assert "record 15: decode: KeyError: 'forty'" in j.log.read_text()
    j.stop()


def test_skipped_records_are_consumed(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 200), job("--chunks-per-task", "1")
    loader = tm.torch.DataLoader(data, decode=skips, batch_size=1, num_workers=2, addr=j.addr)
    seen = Counter(n for batch in loader for n in batch.tolist())
    loader.close()
    once_per_pass(seen, 100, 1)
    j.verify()


def test_ctrl_c_loses_and_repeats_nothing(job: StartJob, tmp_path: pathlib.Path) -> None:
    """SIGINT to the whole group, as a terminal sends it; the loop is begun again."""
    data, j = numbers(tmp_path, 2000), job("--passes", "2", "--chunks-per-task", "1")
    script = tmp_path / "trainer.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import collections, os, signal, threading, time, trainmaster as tm
            # An interrupt outside of the loop would end the script: the handler raises once for each begin of the loop, and again if Python has
            # ignored the exception, as in a handler of a fork, and the loop has gone on.
            is_in_loop = False
            def interrupt(*_):
                global is_in_loop
                if is_in_loop:
                    is_in_loop = False
                    raise KeyboardInterrupt
            signal.signal(signal.SIGINT, interrupt)
            def parse(r): return int.from_bytes(r[:8], "little")
            loader = tm.torch.DataLoader({data!r}, decode=parse, batch_size=16, num_workers=2, multiprocessing_context="fork", addr={j.addr!r})
            seen, interrupts = collections.Counter(), 0
            is_over = threading.Event()
            def press():
                while interrupts < 5 and not is_over.wait(.03):
                    os.killpg(0, signal.SIGINT)
            presses = threading.Thread(target=press, daemon=True)
            presses.start()
            while True:
                try:
                    is_in_loop = True
                    for batch in loader:
                        seen.update(batch.tolist())
                        is_in_loop = True
                    is_in_loop = False
                    is_over.set()
                    presses.join()
                    break
                except KeyboardInterrupt:
                    interrupts += 1
            assert min(seen.values()) == 2, "a record was lost"
            # A batch that was not asked past is given again: at most the batch in hand for each interrupt.
            assert sum(seen.values()) - 2 * len(seen) <= 16 * interrupts, "more was repeated than the batches in hand"
            print(interrupts, len(seen), loader.client.session)
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, start_new_session=True, timeout=300)
    assert done.returncode == 0, done.stderr
    interrupts, rest = done.stdout.split(maxsplit=1)
    assert int(interrupts) > 0
    assert rest == "2000 1\n"
    j.verify()


def test_agent_that_is_killed_costs_no_count(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j, seen = numbers(tmp_path, 1000), job("--passes", "2", "--chunks-per-task", "1"), Counter[int]()
    loader = tm.torch.DataLoader(data, decode=parse, batch_size=10, num_workers=2, addr=j.addr)
    for n, batch in enumerate(loader):
        seen.update(batch.tolist())
        if n in (5, 60):
            kill(loader.client.agent_pid)
    loader.close()
    assert len(seen) == 1000
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0), (0, 0)]


def test_bad_input_is_explained(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 100), job()
    with pytest.raises(ValueError, match="decode: expected a function that other processes can import, since they start by spawn, found <function"):
        tm.torch.DataLoader(data, decode=lambda r: r, num_workers=1, multiprocessing_context="spawn", addr=j.addr)
    for arguments in ({"sampler": [1]}, {"in_order": False}):
        with pytest.raises(TypeError, match=f"{next(iter(arguments))}: expected no such argument"):
            tm.torch.DataLoader(data, addr=j.addr, **arguments)
    with pytest.raises(ValueError, match="batch_size: expected a whole number of at least 1, found 0"):
        tm.torch.DataLoader(data, batch_size=0, addr=j.addr)
    loader = tm.torch.DataLoader(data, decode=parse, addr=j.addr)
    plain: Any = torch.utils.data.DataLoader(loader.dataset, num_workers=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"use trainmaster\.torch\.DataLoader"):
        next(iter(plain))
    loader.close()


def test_script_without_a_guard_is_refused(job: StartJob, tmp_path: pathlib.Path) -> None:
    """With the start method spawn, the worker imports the script, which would train again."""
    data, j = numbers(tmp_path, 100), job()
    script = tmp_path / "train.py"
    script.write_text(
        "import trainmaster as tm\n"
        f"loader = tm.torch.DataLoader({data!r}, decode=len, num_workers=1, multiprocessing_context='spawn', addr={j.addr!r})\n"
        "print(len(list(loader)))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 1
    assert done.stderr.count("expected `if __name__ == '__main__':` around the training, found none: a worker process imports the script") == 1
    assert "RuntimeError: a worker of the DataLoader ended with exit code 1 before the first batch: its message is above" in done.stderr


def test_mapped_chunks_of_all_workers_stay_below_the_limit_of_the_agent(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 1280, shards=1, per_chunk=1), job("--chunks-per-task", "32")
    with tm.Client(j.addr) as client:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.prlimit(client.agent_pid, resource.RLIMIT_NOFILE, (128, before[1]))
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        try:
            loader = tm.torch.DataLoader(data, decode=number_of, batch_size=4, num_workers=4, shuffle=True, shuffle_window=16, client=client)
            seen = Counter(n for batch in loader for n in batch.tolist())
            loader.close()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    once_per_pass(seen, 1280, 1)
    assert j.verify()[0]["redelivered"] == 0


def test_worker_that_is_killed_while_the_loop_looks_ahead(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F452: the batch in hand is not read again in the place of the next one."""
    data = numbers(tmp_path, 400, per_chunk=20)
    j = job()
    loader = tm.torch.DataLoader(data, decode=number_of, batch_size=10, num_workers=1, addr=j.addr, multiprocessing_context="fork")
    seen: Counter[int] = Counter()
    for i, batch in enumerate(loader):
        seen.update(batch.tolist())
        if i % 8 == 3:
            kill(loader.worker_pids[0])
        assert loader.is_last or sum(seen.values()) < 400
    loader.close()
    assert loader.rebuilt > 1
    once_per_pass(seen, 400, 1)
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0)]
