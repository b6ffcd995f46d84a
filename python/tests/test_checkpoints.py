"""Exact resume: trainer, agent and master are killed at any time, and the saved model has each record once per pass."""

from __future__ import annotations

import pathlib
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable

import pytest
import torch
from lab import Job, kill, numbers

import trainmaster as tm

StartJob = Callable[..., Job]
RECORDS, PASSES, KILLS = 800, 6, 8
STEPS = RECORDS * PASSES // 7


def test_model_has_each_record_once_per_pass(job: StartJob, tmp_path: pathlib.Path) -> None:
    data = numbers(tmp_path, RECORDS, per_chunk=10)
    j = job("--passes", str(PASSES), "--chunks-per-task", "2", "--explicit-commit", "--session-ttl", "3s")
    script = tmp_path / "trainer.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import time, torch, trainmaster as tm
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
                time.sleep(.005)  # {STEPS} steps take longer than the {KILLS} waits for a fault together, on any machine
            print("over", flush=True)
            """
        )
    )
    chance, kills, over = random.Random(1), 0, False
    end = time.monotonic() + 240
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
        out, _ = trainer.communicate(timeout=120)
        over = "over" in out
    assert kills == KILLS
    state = torch.load(sorted((tmp_path / "saved").glob("step-*.pt"))[-1], weights_only=True)
    assert state["model"]["times"].unique(return_counts=True)[0].tolist() == [PASSES]
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0)] * PASSES


def test_bad_input_is_explained(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, model = numbers(tmp_path, 100), torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain = tm.torch.DataLoader(data, addr=job().addr)
    with pytest.raises(tm.errors.InvalidError, match="start its master with --explicit-commit"):
        tm.torch.Checkpoints(tmp_path / "c", plain, model=model, optimizer=optimizer)
    plain.close()
    loader = tm.torch.DataLoader(data, addr=job("--explicit-commit").addr)
    with pytest.raises(ValueError, match="every: expected at least 1 step, found 0"):
        tm.torch.Checkpoints(tmp_path / "c", loader, model=model, optimizer=optimizer, every=0)
    with pytest.raises(ValueError, match="expected either model, or both save and load"):
        tm.torch.Checkpoints(tmp_path / "c", loader, optimizer=optimizer)
    checkpoints = tm.torch.Checkpoints(tmp_path / "c", loader, model=model, optimizer=optimizer)
    assert checkpoints.restore() == 0
    with pytest.raises(tm.errors.InvalidError, match=r"expected optimizer\.step\(\) once for each batch"):
        for _ in loader:
            pass
    loader.close()
