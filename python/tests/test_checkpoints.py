"""Exact resume: trainer, agent and master are killed at any time, and the saved model has each record once per pass."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import textwrap
import threading
import time
import types
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from lab import Job, end, kill, number_of, numbers

import trainmaster as tm
from trainmaster.torch import _checkpoints

StartJob = Callable[..., Job]
RECORDS, PASSES, KILLS = 800, 6, 8


def test_model_has_each_record_once_per_pass(job: StartJob, tmp_path: pathlib.Path) -> None:
    data = numbers(tmp_path, RECORDS, per_chunk=10)
    j = job("--passes", str(PASSES), "--chunks-per-task", "2", "--explicit-commit", "--session-ttl", "3s")
    script = tmp_path / "trainer.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import pathlib, time, torch, trainmaster as tm
            released = pathlib.Path({str(tmp_path / "released")!r})
            def parse(record): return int.from_bytes(record[:8], "little")
            class Ledger(torch.nn.Module):  # a model that knows how often each record was applied
                def __init__(self):
                    super().__init__()
                    self.register_buffer("times", torch.zeros({RECORDS}, dtype=torch.int64))
                    self.weight = torch.nn.Parameter(torch.zeros(1))
            model = Ledger()
            optimizer = torch.optim.SGD(model.parameters(), lr=.1)
            loader = tm.torch.DataLoader({data!r}, decode=parse, batch_size=7, shuffle=True, addr={j.addr!r})
            checkpoints = tm.torch.Checkpoints({str(tmp_path / "saved")!r}, loader, model=model, optimizer=optimizer, every=9)
            step = checkpoints.restore()
            print("agent", loader.client.agent_pid, "step", step, flush=True)
            for numbers in loader:
                model.times[numbers] += 1
                model.weight.grad = torch.ones(1)
                optimizer.step()
                time.sleep(.005)  # a step
                while model.times.sum() > {RECORDS * PASSES // 2} and not released.exists() and loader.client._agent.is_alive():
                    time.sleep(.01)  # the job must not end before the last fault
            print("over", flush=True)
            """
        )
    )
    chance, kills, over = random.Random(1), 0, False
    end = time.monotonic() + 900  # each of the processes imports PyTorch
    while not over:
        assert time.monotonic() < end
        trainer = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
        assert trainer.stdout
        begun = trainer.stdout.readline()
        if begun and kills < KILLS:
            time.sleep(chance.random() * 0.4)  # a random time of the fault, from a seed
            kills += 1
            victim = chance.choice(["trainer", "trainer", "agent", "master"])
            if trainer.poll() is not None:
                pass
            elif victim == "trainer":
                trainer.kill()
            elif victim == "agent":
                kill(int(begun.split()[1]))
            else:
                j.kill()
                j.start()
                time.sleep(chance.random() * 0.2)  # a random time of the fault, from a seed
                trainer.kill()
            if kills == KILLS:
                (tmp_path / "released").touch()
        out, _ = trainer.communicate(timeout=300)
        over = "over" in out
    assert kills == KILLS
    state = torch.load(sorted((tmp_path / "saved").glob("step-*.pt"))[-1], weights_only=True)
    assert state["model"]["times"].unique(return_counts=True)[0].tolist() == [PASSES]
    assert len(list((tmp_path / "saved").glob("step-*"))) <= 3  # two committed files, and one that was not committed
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0)] * PASSES


class Ledger(torch.nn.Module):
    """A model that knows how often each record was applied."""

    times: torch.Tensor

    def __init__(self, records: int) -> None:
        super().__init__()
        self.register_buffer("times", torch.zeros(records, dtype=torch.int64))
        self.weight = torch.nn.Parameter(torch.zeros(1))


class Trainer:
    """A script in this process."""

    def __init__(
        self, j: Job, data: str, saved: pathlib.Path, records: int = 200, client: tm.Client | None = None, decode: Any = number_of, **options: Any
    ) -> None:
        self.model = Ledger(records)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = tm.torch.DataLoader(data, decode=decode, batch_size=10, addr=None if client else j.addr, client=client)
        options = {"model": self.model, "optimizer": self.optimizer, **options}
        self.checkpoints = tm.torch.Checkpoints(saved, self.loader, **options)

    def step(self, *batches: torch.Tensor) -> None:
        """Apply batches in one step."""
        for batch in batches:
            self.model.times[batch] += 1
        self.model.weight.grad = torch.ones(1)
        self.optimizer.step()

    def train(self) -> None:
        """Train to the end of the job."""
        for batch in self.loader:
            self.step(batch)
        self.loader.close()

    def die(self) -> None:
        """End as a killed process: nothing is saved or committed any more."""
        self.loader.checkpoints = None
        self.checkpoints._settle()
        self.checkpoints._saving = None
        if self.loader.client._agent.is_alive():
            kill(self.loader.client.agent_pid)
        self.loader.client.close()

    def counts(self) -> dict[int, int]:
        """How many records were applied how often."""
        values, counts = self.model.times.unique(return_counts=True)
        return dict(zip(values.tolist(), counts.tolist()))


def saved(directory: pathlib.Path, step: int) -> pathlib.Path:
    """The only file of a step."""
    (path,) = (directory / "saved").glob(f"step-{step:012d}-*.pt")
    return path


def own_files() -> tuple[dict[str, Any], list[Trainer]]:
    """Options of Checkpoints with functions that save and load in the foreground. The trainer must be added to the list."""
    made: list[Trainer] = []

    def save(path: str) -> None:
        torch.save({"model": made[0].model.state_dict(), "loader": made[0].loader.state_dict()}, path)

    def load(path: str) -> None:
        state = torch.load(path, weights_only=True)
        made[0].model.load_state_dict(state["model"])
        made[0].loader.load_state_dict(state["loader"])

    return {"model": None, "save": save, "load": load}, made


@pytest.mark.parametrize("where", ["save", "copy", "write"])
def test_step_without_a_file_is_not_committed(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The function of the program fails, an exception comes while the state is copied, or the disk is full in the background."""
    data = numbers(tmp_path, 200, per_chunk=10)
    j = job("--explicit-commit")
    options, made = own_files() if where == "save" else ({}, [])
    t = Trainer(j, data, tmp_path / "saved", every=3, **options)
    made.append(t)
    t.checkpoints.restore()
    write, state_dict = torch.save, t.model.state_dict
    failed: list[int] = []

    def fail(step: int) -> Any:
        if step == 6:
            failed.append(step)
            raise OSError(28, "No space left on device")

    if where == "copy":
        monkeypatch.setattr(t.model, "state_dict", lambda: fail(t.checkpoints.step) or state_dict())
    else:
        monkeypatch.setattr(torch, "save", lambda state, path: fail(state.get("step", t.checkpoints.step)) or write(state, path))
    with pytest.raises(OSError, match="No space left"):
        for batch in t.loader:
            t.step(batch)
            t.checkpoints._settle()
    assert failed == [6]
    _checkpoints._at_exit(weakref.ref(t.checkpoints))
    t.loader.close()
    monkeypatch.undo()
    options, made = own_files() if where == "save" else ({}, [])
    t = Trainer(j, data, tmp_path / "saved", every=3, **options)
    made.append(t)
    assert t.checkpoints.restore() == 3
    t.train()
    assert t.counts() == {1: 200}


def test_process_without_a_session_replaces_no_file(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk is slow: it writes step 3 when its successor has committed a step 3 with other records."""
    data = numbers(tmp_path, 200, per_chunk=10)
    j = job("--explicit-commit")
    begun, go, write = threading.Event(), threading.Event(), torch.save

    def slow(*args: Any) -> None:
        begun.set()
        assert go.wait(120)
        write(*args)

    old = Trainer(j, data, tmp_path / "saved", every=3)
    old.checkpoints.restore()
    monkeypatch.setattr(torch, "save", slow)
    for batch in itertools.islice(old.loader, 3):
        old.step(batch)
    old.loader.done()
    assert begun.wait(60)
    monkeypatch.undo()
    end(old.loader.client.agent_pid)
    new = Trainer(j, data, tmp_path / "saved", every=3)
    new.loader.account.batch_size = 20
    assert new.checkpoints.restore() == 0
    for batch in itertools.islice(new.loader, 3):
        new.step(batch)
    new.loader.done()
    new.checkpoints.finish()
    assert new.checkpoints.committed == 3
    published = (tmp_path / "saved" / "latest.json").read_text()
    go.set()
    saving = old.checkpoints._saving
    assert saving is not None
    old.checkpoints._settle()
    old.checkpoints._commit_is_done(saving)  # as if the end of its session had come after its commit
    assert (tmp_path / "saved" / "latest.json").read_text() == published
    old.die()
    new.die()
    t = Trainer(j, data, tmp_path / "saved", every=3)
    assert t.checkpoints.restore() == 3
    assert t.model.times.equal(new.model.times)
    assert t.counts() == {0: 140, 1: 60}
    saved(tmp_path, 3)  # the other one is removed
    t.train()
    assert t.counts() == {1: 200}


def test_agent_that_is_killed_ends_the_loop_with_the_documented_error(job: StartJob, tmp_path: pathlib.Path) -> None:
    t = Trainer(job("--explicit-commit"), numbers(tmp_path, 200, per_chunk=10), tmp_path / "saved")
    t.checkpoints.restore()
    with pytest.raises(tm.errors.RolledBackError, match="the session of this member was lost"):
        for i, batch in enumerate(t.loader):
            t.step(batch)
            if i == 2:
                end(t.loader.client.agent_pid)
    with pytest.raises(tm.errors.RolledBackError, match="start the script again from the last committed step"):
        t.checkpoints.commit()
    with pytest.raises(tm.errors.RolledBackError, match="the session of this member was lost"):
        t.loader.close()  # with a step that is saved and not committed
    t.die()


def test_failing_decode_ends_the_loop_with_its_error(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F564: no task is dispatched before a rollback. The task is dispatched again after the next start."""
    data, j = numbers(tmp_path, 200, per_chunk=10), job("--explicit-commit", "--chunks-per-task", "1")

    def fails(record: memoryview) -> int:
        if number_of(record) == 12:
            raise ValueError("no such label")
        return number_of(record)

    t = Trainer(j, data, tmp_path / "saved", every=1, decode=fails)
    t.checkpoints.restore()
    with pytest.raises(tm.errors.RolledBackError, match=r"start the script again .*/numbers-0.*: decode: ValueError: no such label"):
        t.train()
    with pytest.raises(tm.errors.RolledBackError):
        t.train()
    with contextlib.suppress(tm.errors.RolledBackError):  # if a step was saved
        t.loader.close()
    t.die()
    t = Trainer(j, data, tmp_path / "saved")
    t.checkpoints.restore()
    t.train()
    assert t.counts() == {1: 200}
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0)]


def test_interrupted_commit_is_repeated(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    t = Trainer(job("--explicit-commit"), numbers(tmp_path, 200, per_chunk=10), tmp_path / "saved", every=3)
    t.checkpoints.restore()
    for batch in itertools.islice(t.loader, 3):
        t.step(batch)
    t.loader.done()
    t.checkpoints._settle()
    t.checkpoints._boundary()
    assert t.checkpoints._saving is not None
    assert t.checkpoints._saving.request is not None

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(t.loader.client, "flushed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        t.checkpoints.finish()
    until = time.monotonic() + 60
    while t.checkpoints.committed == 0:
        assert time.monotonic() < until
        t.checkpoints._boundary()
        time.sleep(0.02)  # a step
    assert t.checkpoints.committed == 3
    t.die()


@pytest.mark.parametrize("seed", [None, 8])
def test_another_order_is_refused(job: StartJob, tmp_path: pathlib.Path, seed: int | None) -> None:
    """The records that a step has applied are counted in the order of the process that has applied them."""
    data = numbers(tmp_path, 200, per_chunk=10)
    j = job("--explicit-commit", "--chunks-per-task", "10")

    def start(seed: int | None) -> Trainer:
        t = Trainer(j, data, tmp_path / "saved", every=3)
        t.loader.account.shuffle, t.loader.account.seed = int(seed is not None), seed or 0
        return t

    t = start(seed)
    assert t.checkpoints.restore() == 0
    t.die()
    t = start(7)  # nothing is trained
    t.checkpoints.restore()
    for batch in itertools.islice(t.loader, 3):
        t.step(batch)
    t.checkpoints.commit()
    t.die()
    t = start(seed)
    found = "no shuffle" if seed is None else "shuffle with seed 8"
    with pytest.raises(tm.errors.InvalidError, match=f"expected shuffle with seed 7, with which step 3 was trained, found {found}: keep"):
        t.checkpoints.restore()
    t.die()
    t = start(7)
    assert t.checkpoints.restore() == 3
    answers = iter([3, 1 + 8])  # of rank 0: step and seed
    with pytest.MonkeyPatch.context() as m:
        m.setattr(type(t.loader), "group", types.SimpleNamespace(rank=1, size=2, number=lambda _: next(answers), any=bool), raising=False)
        with pytest.raises(tm.errors.InvalidError, match="expected the same shuffle and seed on all ranks, found shuffle with seed 7 on rank 1"):
            t.checkpoints.restore()
    t.train()
    assert t.counts() == {1: 200}


def test_rank_that_ends_with_an_exception_does_not_wait_for_the_others(
    job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = Trainer(job("--explicit-commit"), numbers(tmp_path, 200, per_chunk=10), tmp_path / "saved", every=3)
    t.checkpoints.restore()
    for batch in itertools.islice(t.loader, 3):
        t.step(batch)
    t.loader.done()
    monkeypatch.setattr(sys, "last_value", ValueError(), raising=False)  # as the interpreter does before it ends
    with pytest.MonkeyPatch.context() as m:
        m.setattr(type(t.loader), "group", types.SimpleNamespace(rank=0, size=2), raising=False)
        _checkpoints._at_exit(weakref.ref(t.checkpoints))
    assert t.checkpoints.committed == 0
    _checkpoints._at_exit(weakref.ref(t.checkpoints))
    assert t.checkpoints.committed == 3
    t.die()


def test_skipped_records_do_not_overtake_accumulated_ones(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of a task are applied in order: a skipped record after a batch without a step belongs to the next step."""
    j, data = job("--explicit-commit", "--chunks-per-task", "4"), numbers(tmp_path, 40, shards=1, per_chunk=10)
    t = Trainer(j, data, tmp_path / "saved", records=40, decode=lambda r: tm.SKIP if 10 <= number_of(r) < 20 else number_of(r))
    t.checkpoints.restore()
    post, applied = t.loader.client._post, Counter[int]()

    def note(op: str, **fields: Any) -> None:
        if op == "applied":
            applied[fields["step"]] += fields["n"]
        post(op, **fields)

    monkeypatch.setattr(t.loader.client, "_post", note)
    batches = iter(t.loader)
    first, second = next(batches), next(batches)
    assert (first.tolist(), second.tolist()) == (list(range(10)), list(range(20, 30)))
    assert not applied
    t.step(first, second)
    for batch in batches:
        t.step(batch)
    assert applied == {1: 30, 2: 10}
    t.loader.close()
    j.verify()


def test_next_loader_needs_another_client(job: StartJob, tmp_path: pathlib.Path) -> None:
    j, data, times = job("--explicit-commit"), numbers(tmp_path, 200), torch.zeros(200, dtype=torch.int64)
    for batches in (3, 4, 100):
        with tm.Client(j.addr) as client:
            t = Trainer(j, data, tmp_path / "saved", client=client)
            t.checkpoints.restore()
            for batch in itertools.islice(t.loader, batches):
                t.step(batch)
            t.checkpoints.commit()
            t.loader.close()
            times = t.model.times
            with pytest.raises(tm.errors.InvalidError, match="client: expected a new client, since the job has explicit commits"):
                tm.Loader(data, client=client)
    assert times.unique().tolist() == [1]
    j.verify()


def test_damaged_and_other_checkpoints_are_named(job: StartJob, tmp_path: pathlib.Path) -> None:
    j, data, saved = job("--explicit-commit"), numbers(tmp_path, 200), tmp_path / "saved"
    t = Trainer(j, data, saved)
    t.checkpoints.restore()
    t.step(next(iter(t.loader)))
    t.checkpoints.commit()
    t.die()
    (path,) = saved.glob("step-*.pt")
    content = path.read_bytes()
    for damaged in (b"", b"text", content[: len(content) // 2]):
        path.write_bytes(damaged)
        t = Trainer(j, data, saved)
        with pytest.raises(tm.errors.DamagedError, match=rf"{path}: expected the state of step 1, found a damaged file \(.*: restore it"):
            t.checkpoints.restore()
        t.die()
    path.write_bytes(content)
    other = Trainer(j, data, saved, records=100)
    with pytest.raises(tm.errors.InvalidError, match=rf"{path}: expected the state of this model and optimizer, found that of others \(RuntimeError"):
        other.checkpoints.restore()
    other.die()


def test_commit_before_restore_is_refused(job: StartJob, tmp_path: pathlib.Path) -> None:
    """Otherwise an untrained model is the state of step 1."""
    t = Trainer(job("--explicit-commit"), numbers(tmp_path, 200), tmp_path / "saved")
    with pytest.raises(tm.errors.InvalidError, match=r"checkpoints: expected restore\(\) before commit\(\), found none: call it"):
        t.checkpoints.commit()
    assert t.checkpoints.restore() == 0
    with pytest.raises(tm.errors.InvalidError, match=r"expected none, since job .* has no committed step"):
        t.checkpoints.load_state_dict({})
    t.die()


def test_save_that_fails_names_its_file(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    t = Trainer(job("--explicit-commit"), numbers(tmp_path, 200), tmp_path / "saved")
    t.checkpoints.restore()
    t.step(next(iter(t.loader)))

    def fail(_: Any, path: pathlib.Path) -> None:
        path.write_text("a part")
        raise RuntimeError("[enforce fail]")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(tm.errors.SaveError, match=r"step-000000000001-\d+\.pt: expected to write it, found RuntimeError: .enforce fail.: "):
        t.checkpoints.commit()
    assert not list((tmp_path / "saved").glob("*.tmp"))
    t.die()


def test_start_removes_what_has_filled_the_disk(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full of files of steps that were not committed. No start may need room before it has removed them."""
    j, data, saved = job("--explicit-commit"), numbers(tmp_path, 200), tmp_path / "saved"
    first = Trainer(j, data, saved)
    first.checkpoints.restore()
    for batch in itertools.islice(first.loader, 3):
        first.step(batch)
    first.checkpoints.commit()
    generation = first.checkpoints._generation
    first.die()
    for name in (f"step-{6:012d}-{generation}.tmp", f".latest.json-{generation}.tmp"):
        (saved / name).touch()

    def replace(source: Any, target: Any) -> None:
        raise OSError(errno.ENOSPC, f"{target}: no space")

    second = Trainer(j, data, saved)
    with monkeypatch.context() as m, pytest.raises(OSError, match="no space"):
        m.setattr(os, "replace", replace)
        second.checkpoints.restore()
    assert sorted(p.name for p in saved.iterdir()) == ["latest.json", f"step-{3:012d}-{generation}.pt"]
    second.die()


def test_file_is_synced_before_it_has_its_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = _checkpoints._sync, os.replace

    def note_sync(path: pathlib.Path) -> None:
        done.append(f"sync {path.name}")
        sync(path)

    def note_rename(source: pathlib.Path, target: pathlib.Path) -> None:
        done.append("rename")
        replace(source, target)

    monkeypatch.setattr(_checkpoints, "_sync", note_sync)
    monkeypatch.setattr(os, "replace", note_rename)
    _checkpoints._store(tmp_path / "a.pt", lambda path: path.write_text("x"))
    assert done == ["sync a.tmp", "rename", f"sync {tmp_path.name}"]

    def fill(path: pathlib.Path) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "no space")

    with pytest.raises(OSError, match="no space"):
        _checkpoints._store(tmp_path / "b.pt", fill)
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]


def test_files_are_synced_when_no_rank_writes(job: StartJob, tmp_path: pathlib.Path) -> None:
    """Rank 1 has returned from its function, and rank 0 renames a file in the directory."""
    t = Trainer(job("--explicit-commit"), numbers(tmp_path, 200), tmp_path / "saved")
    file = tmp_path / "step.tmp" / "f"
    barriers: list[int] = []

    def number(_: int) -> int:
        barriers.append(len(barriers))
        if barriers == [0, 1]:
            file.rename(file.with_suffix(".whole"))
        return 0

    def save(path: str) -> None:
        pathlib.Path(path).mkdir()
        file.touch()

    sync = _checkpoints._sync
    synced: list[str] = []

    def note(path: pathlib.Path) -> None:
        synced.append(path.name)
        sync(path)

    with pytest.MonkeyPatch.context() as m:
        m.setattr(type(t.loader), "group", types.SimpleNamespace(rank=1, size=2, number=number), raising=False)
        m.setattr(_checkpoints, "_sync", note)
        t.checkpoints._save_with(save, tmp_path / "step.pt")
    assert synced == ["step.tmp", "f.whole"]
    t.die()


class Pair(NamedTuple):
    """A state of a program."""

    first: torch.Tensor
    second: int


def test_copied_state_has_the_versions_of_its_modules() -> None:
    state = torch.nn.BatchNorm1d(2).state_dict()
    copied = _checkpoints._copy(state)
    assert vars(copied)["_metadata"] == vars(state)["_metadata"]
    state["running_mean"] += 1
    assert copied["running_mean"].tolist() == [0, 0]
    assert _checkpoints._copy({"pair": Pair(torch.zeros(()), 2)}) == {"pair": Pair(torch.zeros(()), 2)}


@pytest.mark.parametrize("how", ["islice", "break", "exception"])
def test_loop_that_was_left_does_not_repeat_an_applied_batch(job: StartJob, tmp_path: pathlib.Path, how: str) -> None:
    data = numbers(tmp_path, 200, per_chunk=10)
    j = job("--chunks-per-task", "10", "--explicit-commit")
    t = Trainer(j, data, tmp_path / "saved", every=4)
    t.checkpoints.restore()
    for _ in range(2):
        if how == "islice":
            for batch in itertools.islice(t.loader, 2):
                t.step(batch)
        else:
            with contextlib.suppress(KeyboardInterrupt):
                for i, batch in enumerate(t.loader):
                    t.step(batch)
                    if i == 1 and how == "break":
                        break
                    if i == 1:
                        raise KeyboardInterrupt
    assert t.counts()[1] == 40
    t.checkpoints.commit()
    assert t.checkpoints.committed == 4
    t.die()
    t = Trainer(j, data, tmp_path / "saved", every=4)
    assert t.checkpoints.restore() == 4
    t.train()
    assert t.counts() == {1: 200}


def test_interrupted_step_is_not_continued(job: StartJob, tmp_path: pathlib.Path) -> None:
    """What the model has after an exception in optimizer.step() is not known: the loop must begin from the last committed step."""
    data = numbers(tmp_path, 200, per_chunk=10)
    j = job("--explicit-commit")
    t = Trainer(j, data, tmp_path / "saved")
    t.checkpoints.restore()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        for batch in t.loader:
            hook = t.optimizer.register_step_pre_hook(interrupt)
            t.step(batch)
    hook.remove()
    with pytest.raises(tm.errors.RolledBackError, match="interrupted a step: start the script again"):
        t.train()
    t.die()


def test_accumulated_batches_and_several_steps_for_a_batch(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, passes = numbers(tmp_path, 200, per_chunk=10), 2
    j = job("--chunks-per-task", "2", "--explicit-commit", "--passes", str(passes))
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    other.param_groups[0]["params"][0].grad = torch.ones(1)

    def accumulate(t: Trainer, steps: int) -> None:
        batches: list[torch.Tensor] = []
        for batch in t.loader:
            batches.append(batch)
            if len(batches) == 3 or t.loader.is_last:
                other.step()
                t.step(*batches)
                batches = []
            if t.checkpoints.step == steps and len(batches) == 2:
                return  # with batches that are in no step

    t = Trainer(j, data, tmp_path / "saved", every=2)
    optimizers = [t.optimizer, other]
    t.loader.checkpoints = None
    t.checkpoints = tm.torch.Checkpoints(tmp_path / "saved", t.loader, model=t.model, optimizer=optimizers, every=2)
    assert t.checkpoints.restore() == 0
    accumulate(t, 3)
    t.checkpoints.commit()
    assert t.checkpoints.committed == 3
    t.die()
    t = Trainer(j, data, tmp_path / "saved", every=2)
    t.loader.checkpoints = None
    t.checkpoints = tm.torch.Checkpoints(tmp_path / "saved", t.loader, model=t.model, optimizer=[t.optimizer, other], every=2)
    assert t.checkpoints.restore() == 3
    assert t.counts() == {0: 110, 1: 90}
    accumulate(t, -1)
    t.loader.close()
    assert t.counts() == {passes: 200}
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0)] * passes


def test_is_last_after_done_is_true_before_the_step(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F556: no further task can come before a commit, and the loop has called `done()`."""
    data, passes = numbers(tmp_path, 200, per_chunk=10), 2
    j = job("--chunks-per-task", "2", "--explicit-commit", "--passes", str(passes))
    t = Trainer(j, data, tmp_path / "saved")
    assert t.checkpoints.restore() == 0
    batches: list[torch.Tensor] = []
    for batch in t.loader:
        batches.append(batch)
        t.loader.done()
        if len(batches) == 3 or t.loader.is_last:
            t.step(*batches)
            batches = []
    assert not batches
    t.loader.close()
    assert t.counts() == {passes: 200}
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0)] * passes


def test_step_after_done_counts(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F560: the last step before a commit comes after `done()`."""
    data = numbers(tmp_path, 200, per_chunk=10)
    j = job("--chunks-per-task", "2", "--explicit-commit")
    t = Trainer(j, data, tmp_path / "saved")
    assert t.checkpoints.restore() == 0
    for i, batch in enumerate(t.loader):
        t.loader.done()
        t.step(batch)
        assert t.checkpoints.step == i + 1
        if i == 2:
            break
    t.checkpoints.commit()
    assert t.checkpoints.committed == 3
    t.die()
    t = Trainer(j, data, tmp_path / "saved")
    assert t.checkpoints.restore() == 3
    t.train()
    assert t.counts() == {1: 200}
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0)]


def test_interrupted_step_after_done_is_not_continued(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F560: what the model has is not known."""
    data = numbers(tmp_path, 200, per_chunk=10)
    t = Trainer(job("--explicit-commit"), data, tmp_path / "saved")
    t.checkpoints.restore()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    t.optimizer.register_step_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        for batch in t.loader:
            t.loader.done()
            t.step(batch)
    with pytest.raises(tm.errors.RolledBackError, match="interrupted a step: start the script again"):
        t.train()
    t.die()


def test_step_between_passes_is_not_of_the_next_batch(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F560: the loop over passes has read the first batch of the next pass, and the script does not have it."""
    data, passes = numbers(tmp_path, 200, per_chunk=10), 2
    j = job("--chunks-per-task", "2", "--explicit-commit", "--passes", str(passes))
    t = Trainer(j, data, tmp_path / "saved")
    assert t.checkpoints.restore() == 0
    epochs = iter(t.loader.passes())
    for batch in next(epochs):
        t.step(batch)
    t.step()
    for batch in next(epochs):
        assert len(batch)
        break  # no step has applied it
    t.checkpoints.commit()
    t.die()
    t = Trainer(j, data, tmp_path / "saved")
    assert t.checkpoints.restore() > 0
    assert t.counts() == {1: 200}
    t.train()
    assert t.counts() == {passes: 200}
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0)] * passes


def test_file_is_written_while_training_continues(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = numbers(tmp_path, 200, per_chunk=10)
    j = job("--explicit-commit")
    t = Trainer(j, data, tmp_path / "saved", every=3)
    t.checkpoints.restore()
    go, save = threading.Event(), torch.save

    def slow(*args: Any) -> None:
        assert go.wait(240)
        save(*args)

    monkeypatch.setattr(torch, "save", slow)
    for i, batch in enumerate(t.loader):
        t.step(batch)
        if i == 4:
            break
    t.loader.done()
    assert (t.checkpoints.step, t.checkpoints.committed) == (5, 0)
    assert not list((tmp_path / "saved").glob("step-*.pt"))
    go.set()
    for batch in t.loader:  # the step is committed at one of the next batches, without a call
        t.step(batch)
        if t.checkpoints.committed == 3:
            break
        time.sleep(0.05)  # a step
    assert t.checkpoints.committed == 3
    assert torch.load(saved(tmp_path, 3), weights_only=True)["model"]["times"].sum() == 30
    t.die()


def test_process_waits_for_its_file_at_the_end(job: StartJob, tmp_path: pathlib.Path) -> None:
    data = numbers(tmp_path, 200, per_chunk=10)
    j = job("--explicit-commit")
    script = f"""
import torch, trainmaster as tm
from lab import number_of
model = torch.nn.Linear(2000, 500)
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
loader = tm.torch.DataLoader({data!r}, decode=number_of, batch_size=10, addr={j.addr!r})
checkpoints = tm.torch.Checkpoints({str(tmp_path / "saved")!r}, loader, model=model, optimizer=optimizer, every=3)
checkpoints.restore()
for i, batch in enumerate(loader):
    optimizer.step()
    if i == 2:
        break
loader.done()
print(checkpoints.committed)
"""
    environment = {**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{pathlib.Path(__file__).parent}"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    t = Trainer(j, data, tmp_path / "other")
    assert t.loader.client.last_step() == 3
    assert json.loads((tmp_path / "saved" / "latest.json").read_text())["files"] == [saved(tmp_path, 3).name]
    t.die()


def test_files_of_another_job_are_kept_and_refused(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, used = numbers(tmp_path, 200, per_chunk=10), tmp_path / "saved"
    t = Trainer(job("--explicit-commit"), data, used, every=2)
    t.checkpoints.restore()
    t.train()
    first = sorted(p.name for p in used.iterdir())
    j = job("--explicit-commit")
    t = Trainer(j, data, used, every=2)
    with pytest.raises(tm.errors.InvalidError, match=r"found step-0+2\d-\d+\.pt of job .*: use a directory of its own for each job"):
        t.checkpoints.restore()
    assert sorted(p.name for p in used.iterdir()) == first
    other = tmp_path / "other"
    other.mkdir()
    stale = other / "step-000000000099-9999.pt"
    t.checkpoints.directory = other
    t.checkpoints.restore()
    stale.touch()  # written by this job, and not committed
    for i, batch in enumerate(t.loader):
        t.step(batch)
        if i == 6:
            break
    t.checkpoints.commit()
    now = t.loader.client._incarnation
    assert sorted(p.name for p in other.glob("*.pt")) == [f"step-000000000006-{now}.pt", f"step-000000000007-{now}.pt", stale.name]
    t.die()
    t = Trainer(j, data, used)
    with pytest.raises(
        tm.errors.NotFoundError, match=r"expected step-0+7-GENERATION\.pt, the last committed step of job .*: use the directory of this job"
    ):
        t.checkpoints.restore()
    os.rename(other / f"step-000000000006-{now}.pt", other / f"step-000000000007-{now}.pt")
    t.checkpoints.directory = other
    with pytest.raises(
        tm.errors.InvalidError, match=r"expected format 1, step 7 of job \w+, found .* step 6 of job .*: load the checkpoint of step 7"
    ):
        t.checkpoints.restore()
    t.die()


def test_state_of_the_loader_is_in_files_of_the_program(job: StartJob, tmp_path: pathlib.Path) -> None:
    """As with StatefulDataLoader: the program saves all of its state, here with torch.distributed.checkpoint, into a directory for each step."""
    data = numbers(tmp_path, 200, per_chunk=10)
    j = job("--explicit-commit")

    def start() -> Trainer:
        made: list[Trainer] = []
        options: dict[str, Any] = {"save": lambda p: write(made[0], p), "load": lambda p: read(made[0], p)}
        made.append(Trainer(j, data, tmp_path / "saved", model=None, every=4, **options))
        return made[0]

    def write(t: Trainer, path: str) -> None:
        dcp.save({"model": t.model.state_dict(), "loader": t.loader.state_dict()}, checkpoint_id=path, no_dist=True)

    def read(t: Trainer, path: str) -> None:
        state = {"model": t.model.state_dict(), "loader": {"format": 0, "job": "", "step": 0}}
        dcp.load(state, checkpoint_id=path, no_dist=True)
        t.loader.load_state_dict(state["loader"])

    t = start()
    assert t.checkpoints.restore() == 0
    for i, batch in enumerate(t.loader):
        t.step(batch)
        if i == 9:
            break
    old = t.loader.state_dict()
    assert old == {"format": 1, "job": t.loader.client.job_id, "step": 10}
    t.checkpoints.finish()
    t.die()
    t = start()
    assert t.checkpoints.restore() == 8
    assert t.counts() == {0: 120, 1: 80}
    for state in (old, {**old, "job": "0123"}):
        with pytest.raises(tm.errors.InvalidError, match=r"state of the loader: expected format 1, step 8 of job .*: load the checkpoint of step 8"):
            t.loader.load_state_dict(state)
    t.loader.load_state_dict({**old, "step": 8})  # the program has read the file of step 8 itself
    t.train()
    assert t.counts() == {1: 200}
    empty = Trainer(job("--explicit-commit"), data, tmp_path / "new")
    with pytest.raises(tm.errors.InvalidError, match=r"has no committed step, found format 1, step 10 of job .*: begin with a new model"):
        empty.loader.load_state_dict(old)
    empty.die()


def skips_the_last(record: memoryview) -> Any:
    number = number_of(record)
    return tm.SKIP if number >= 190 else number


def test_pass_that_ends_with_skipped_records_is_committed(job: StartJob, tmp_path: pathlib.Path) -> None:
    """Its last step is committed before: the rest of the pass counts with a step of its own."""
    j = job("--explicit-commit", "--chunks-per-task", "1")
    t = Trainer(j, numbers(tmp_path, 200, shards=1, per_chunk=10), tmp_path / "saved", every=1)
    t.loader._functions = skips_the_last, *t.loader._functions[1:]
    t.checkpoints.restore()
    t.train()
    assert t.counts() == {0: 10, 1: 190}
    assert t.checkpoints.committed == t.checkpoints.step > 19
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0)]


@pytest.mark.parametrize("files", ["of Checkpoints", "of the program"])
def test_script_that_starts_after_the_end_loads_the_last_step(job: StartJob, tmp_path: pathlib.Path, files: str) -> None:
    data = numbers(tmp_path, 200, per_chunk=10)
    j = job("--explicit-commit", "--linger", "10m")

    def start() -> Trainer:
        options, made = own_files() if files == "of the program" else ({}, [])
        t = Trainer(j, data, tmp_path / "saved", every=6, **options)
        made.append(t)
        return t

    t = start()
    t.checkpoints.restore()
    with tm.Client(j.addr):  # the master waits for it at the end
        t.train()
        last = t.checkpoints.committed
        t = start()
        if files == "of the program":
            t.loader.client._hello, t.loader.client.over = {"job_id": "", "incarnation": 0}, "the job ended before this trainer joined"
        assert t.checkpoints.restore() == last
        if files == "of the program":
            t.loader.load_state_dict({"format": 1, "job": json.loads((tmp_path / "saved" / "latest.json").read_text())["job"], "step": last})
        assert t.counts() == {1: 200}
        assert list(t.loader) == []
        t.loader.close()


def test_bad_input_is_explained(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, model = numbers(tmp_path, 100), torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain = tm.torch.DataLoader(data, addr=job().addr)
    with pytest.raises(tm.errors.InvalidError, match="start its master with --explicit-commit"):
        tm.torch.Checkpoints(tmp_path / "c", plain, model=model, optimizer=optimizer)
    plain.close()
    loader = tm.torch.DataLoader(data, addr=job("--explicit-commit").addr)
    make: Callable[..., Any] = tm.torch.Checkpoints
    foreign = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(1)))
    (tmp_path / "file").touch()
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("every: expected a whole number of at least 1, found 0", {"every": 0}),
        ("every: expected a whole number of at least 1, found None", {"every": None}),
        ("directory: expected the path of a directory, found None", {"directory": None}),
        ("directory: expected the path of a directory, found ''", {"directory": ""}),
        ("directory: expected a directory, found the file '.*/file'", {"directory": tmp_path / "file"}),
        ("loader: expected a loader of trainmaster, found NoneType: use tm.torch.DataLoader", {"loader": None}),
        ("loader: expected a loader of trainmaster, found DataLoader", {"loader": foreign}),
        ("model: expected a torch.nn.Module, found dict: its state is saved with save= and load=", {"model": {}}),
        ("optimizer: expected an optimizer of PyTorch or a list of them, found \\[\\]", {"optimizer": []}),
        ("optimizer: expected an optimizer of PyTorch or a list of them, found 5", {"optimizer": 5}),
        ("save: expected a function, found 5", {"model": None, "save": 5, "load": print}),
    ]
    for words, arguments in wrong:
        with pytest.raises((TypeError, ValueError), match=words):
            make(**{"directory": tmp_path / "c", "loader": loader, "model": model, "optimizer": optimizer, **arguments})
    with pytest.raises(ValueError, match="expected either model, or both save and load"):
        tm.torch.Checkpoints(tmp_path / "c", loader, optimizer=optimizer)
    checkpoints = tm.torch.Checkpoints(tmp_path / "c", loader, model=model, optimizer=optimizer)
    with pytest.raises(tm.errors.InvalidError, match="expected one for each loader, found another one of this loader"):
        tm.torch.Checkpoints(tmp_path / "c", loader, model=model, optimizer=optimizer)
    assert checkpoints.restore() == 0
    with pytest.raises(tm.errors.InvalidError, match=r"expected optimizer\.step\(\) before the end of the pass, .* loader\.is_last"):
        for _ in loader:
            pass
    loader.close()


class KilledError(BaseException):
    """Ends a trainer at a place of its code."""


def test_step_that_was_committed_and_not_published_is_loaded_after_the_end(
    job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F524: the trainer is killed between the commit of its last step, which ends the job, and its publication."""
    data, j = numbers(tmp_path, 200, per_chunk=10), job("--explicit-commit", "--linger", "10m")
    publish = tm.torch.Checkpoints._publish

    def killed(self: tm.torch.Checkpoints, step: int, name: str) -> None:
        if step == 20:
            raise KilledError
        publish(self, step, name)

    with tm.Client(j.addr):  # the master waits for it at the end
        t = Trainer(j, data, tmp_path / "saved", every=6)
        t.checkpoints.restore()
        with monkeypatch.context() as m:
            m.setattr(tm.torch.Checkpoints, "_publish", killed)
            with pytest.raises(KilledError):
                t.train()
        t.die()
        latest = tmp_path / "saved" / "latest.json"
        published = json.loads(latest.read_text())
        assert published["step"] < 20
        older = tmp_path / "saved" / f"step-{21:012d}-{published['generation'] - 1}.pt"
        older.write_bytes(b"of a process that had lost its session")
        t = Trainer(j, data, tmp_path / "saved")
        client = t.loader.client
        client.over = "the job ended before this trainer joined"  # as when no master answers any more
        assert t.checkpoints.restore() == 20
        assert t.counts() == {1: 200}
        client._hello = {"job_id": "", "incarnation": 0}
        assert t.checkpoints.restore() == 20
        assert f"step 20 of job {published['job']}, which is in {tmp_path / 'saved'}, is loaded" in caplog.text
        latest.write_text("{")
        for job_id, content, found in (
            ("", "{", "no file, or a damaged one"),
            (published["job"], json.dumps({**published, "job": "another"}), "job another"),
        ):
            client._hello = {"job_id": job_id, "incarnation": 0}
            latest.write_text(content)
            with pytest.raises(tm.errors.NotFoundError, match=f"expected the last step of the job, which has ended, found {found}: use"):
                t.checkpoints.restore()
        latest.write_text("{")
        assert t.checkpoints.restore() == 20
        t.loader.close()


def test_step_that_no_start_could_load_is_not_committed(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F525: a scheduler can leave NumPy's numbers in the state of the optimizer."""
    data, j = numbers(tmp_path, 200), job("--explicit-commit")
    t = Trainer(j, data, tmp_path / "saved")
    t.checkpoints.restore()
    batches = iter(t.loader)
    t.optimizer.param_groups[0]["lr"] = np.float64(0.25)
    t.step(next(batches))
    t.checkpoints.commit()
    t.optimizer.param_groups[0]["rates"] = np.zeros(2)
    t.step(next(batches))
    with pytest.raises(tm.errors.SaveError, match=r"expected a state of tensors, .* found .*numpy\.ndarray.*Step 1 is the last committed one"):
        t.checkpoints.commit()
    t.die()
    t = Trainer(j, data, tmp_path / "saved")
    assert t.checkpoints.restore() == 1
    assert t.optimizer.param_groups[0]["lr"] == 0.25
    t.die()


def test_loop_before_restore_is_refused(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 200), job("--explicit-commit")
    t = Trainer(j, data, tmp_path / "saved")
    with pytest.raises(tm.errors.InvalidError, match=r"checkpoints: expected restore\(\) before the loop, found none: call it"):
        next(iter(t.loader))
    t.die()
    with tm.Client(j.addr) as client:
        with pytest.raises(tm.errors.InvalidError, match=r"tasks: expected rollback\(last_step\(\)\) before the first task"):
            next(client.tasks())
        client.rollback(client.last_step())
        task = next(client.tasks())
        with pytest.raises(tm.errors.InvalidError, match=f"n: expected at most the {len(task)} records of the task that no step .* found 1000"):
            client.applied(task, 1, 1000)
        with pytest.raises(ValueError, match="step: expected a whole number of at least 1, found 0"):
            client.applied(task, 0, 1)
