"""Ranks that make each step together: DDP with gloo, real masters, and torchrun."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import lab
import pytest
import torch
from test_commands import admin
from test_elastic import Nodes

import trainmaster as tm
from trainmaster._group import Agreed, GroupLoop
from trainmaster.client import DRAINED

StartJob = Callable[..., lab.Job]
LIMIT = 90.0  # seconds

RANK = """
import json, os, pathlib, sys
import torch, torch.distributed as dist
import trainmaster as tm
from lab import number_of
torch.set_num_threads(1)
options = json.loads(sys.argv[1])
here = pathlib.Path(options["directory"])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()

def sample(record):
    number = number_of(record)
    return tm.SKIP if number % 10 == 3 else number

torch.manual_seed(0)
plain = torch.nn.Linear(4, 3)
ddp = torch.nn.parallel.DistributedDataParallel(plain)
loader = tm.torch.DataLoader(
    options["data"], decode=sample, batch_size=8, num_workers=options["workers"], addr=options["addr"], group=dist.group.WORLD
)
lines = []
for epoch in loader.passes():
    for numbers in epoch:
        agent = loader.client.agent_pid
        n = len(numbers) if loader.weight else 0
        x = torch.stack([torch.sin(numbers * (i + 1.0)) for i in range(4)], 1)
        ddp.zero_grad()
        (torch.nn.functional.cross_entropy(ddp(x), numbers % 3) * loader.weight).backward()
        everything = [None] * size
        dist.all_gather_object(everything, numbers.tolist() if n else [])
        numbers.zero_()  # the loop may change its batch
        all_numbers = torch.tensor(sum(everything, []))
        reference = torch.nn.Linear(4, 3)
        reference.load_state_dict(plain.state_dict())
        x = torch.stack([torch.sin(all_numbers * (i + 1.0)) for i in range(4)], 1)
        torch.nn.functional.cross_entropy(reference(x), all_numbers % 3).backward()
        for p, q in zip(plain.parameters(), reference.parameters()):
            torch.testing.assert_close(p.grad, q.grad)
        lines.append([epoch.number, loader.weight, everything[rank]])
        if options.get("kill") == [rank, len(lines)]:
            os.kill(agent, 9)
(here / f"rank{rank}").write_text(json.dumps(lines))
loader.close()
dist.destroy_process_group()
"""


def run_ranks(program: str, size: int, **options: Any) -> list[subprocess.CompletedProcess[str]]:
    """Run a program on ranks of one group."""
    environment = {
        **os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(lab.free_port()),
        "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{pathlib.Path(__file__).parent}",
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, json.dumps(options)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        return [subprocess.CompletedProcess(r.args, r.returncode, *out) for r, out in [(r, r.communicate(timeout=240)) for r in ranks]]
    finally:
        for r in ranks:
            r.kill()
            r.wait()


@pytest.mark.parametrize(
    ("workers", "kill"),
    [
        pytest.param(0, None, id="main process", marks=pytest.mark.long),
        pytest.param(1, None, id="worker"),
        pytest.param(0, [1, 3], id="agent killed"),
    ],
)
def test_gradient_is_that_of_the_mean_over_all_records(job: StartJob, tmp_path: pathlib.Path, workers: int, kill: list[int] | None) -> None:
    """F450, F451: tasks of all sizes, more ranks than tasks at the end of a pass. No rank waits for ever, and the gradient is right in each step."""
    n, passes = 130, 2
    data = lab.numbers(tmp_path, n, shards=1, per_chunk=20)
    j = job("--passes", str(passes), "--chunks-per-task", "1")
    done = run_ranks(RANK, 3, data=data, addr=j.addr, directory=str(tmp_path), workers=workers, kill=kill)
    assert [d.returncode for d in done] == [0, 0, 0], "\n".join(d.stderr[-3000:] for d in done)
    ranks = [json.loads((tmp_path / f"rank{r}").read_text()) for r in range(3)]
    assert len({len(r) for r in ranks}) == 1
    for step in zip(*ranks):
        assert len({pass_ for pass_, _, _ in step}) == 1
        total = sum(len(numbers) for _, _, numbers in step)
        assert [weight for _, weight, _ in step] == pytest.approx([3 * len(numbers) / total for _, _, numbers in step])
    assert any(weight == 0 for r in ranks for _, weight, _ in r)
    seen = Counter(number for r in ranks for _, _, numbers in r for number in numbers)
    if kill is None:
        assert seen == {i: passes for i in range(n) if i % 10 != 3}
    else:  # what was in flight is dispatched again, and counts once
        assert set(seen) == {i for i in range(n) if i % 10 != 3}
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0)] * passes


class ThreadRank:
    """A rank of a group that is a thread, instead of a process of torch.distributed."""

    def __init__(self, rank: int, slots: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, len(slots)
        self._slots, self._barrier = slots, barrier
        self._begun: Agreed | None = None
        self._agreed = Agreed()

    def _exchange(self, mine: Any) -> list[Any]:
        self._slots[self.rank] = mine
        self._barrier.wait()
        found = list(self._slots)
        self._barrier.wait()
        return found

    def begin(self, mine: Agreed) -> None:
        self.settle()
        self._begun = mine

    def agreed(self) -> Agreed:
        self.settle()
        return self._agreed

    def settle(self) -> None:
        if self._begun is not None:
            self._agreed, self._begun = Agreed(*map(sum, zip(*self._exchange(self._begun)))), None

    def share(self, data: Any) -> Any:
        return next(d for d in self._exchange(data) if d is not None)

    def number(self, mine: int) -> int:
        self.settle()
        return int(self._exchange(mine)[0])

    def any(self, mine: bool) -> bool:
        self.settle()
        return any(self._exchange(mine))


class Script:
    """A training script. Each batch has a step, which the model does not need."""

    def __init__(self, j: lab.Job, data: str, saved: pathlib.Path, group: Any = None) -> None:
        self.loader = tm.Loader(data, decode=lab.number_of, batch_size=10, addr=j.addr, timeout=LIMIT)
        if group is not None:
            self.loader._group_loop = GroupLoop(self.loader, group)
        model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        self.checkpoints = tm.torch.Checkpoints(saved, self.loader, model=model, optimizer=self.optimizer, every=1000)
        self.seen = Counter[int]()
        self.stopped = list[str]()
        self.error: BaseException | None = None
        self.loader.on_stop(lambda: self.stopped.append(self.loader.over))

    def run(self, at_step: Callable[[int], None] = lambda _: None) -> None:
        self.checkpoints.restore()
        try:
            for i, batch in enumerate(self.loader):
                if self.loader.weight:
                    self.seen.update(batch.tolist())
                self.optimizer.step()
                at_step(i)
        except tm.errors.RankStoppedError as e:
            self.error = e


@pytest.mark.parametrize("how", ["stop", "drain", "command"])
def test_ranks_end_with_an_error_if_another_rank_is_stopped(job: StartJob, tmp_path: pathlib.Path, how: str) -> None:
    """F497: the rank that is stopped leaves. The step is committed, so the others begin again after it."""
    data = lab.numbers(tmp_path, 400, per_chunk=10)
    j = job("--ring", "1:2", "--explicit-commit", "--chunks-per-task", "1")
    slots, barrier = [None, None], threading.Barrier(2, timeout=LIMIT)
    scripts = [Script(j, data, tmp_path / "saved", ThreadRank(r, slots, barrier)) for r in range(2)]

    def stop_at_4(i: int) -> None:
        loader = scripts[1].loader
        if i == 4 and how == "stop":
            loader.stop()
        elif i == 4 and how == "drain":
            loader.client.over = DRAINED  # as a request for tasks sets it
        elif i == 4:
            admin(j, "drain", loader.client.id)
            while not loader.client._commands(evaluates=False)[0]:
                time.sleep(0.05)  # a heartbeat of the agent: there is nothing to wait on

    def run(script: Script) -> None:
        try:
            script.run(stop_at_4 if script is scripts[1] else lambda _: None)
        finally:
            if sys.exc_info()[0] is not None:
                barrier.abort()

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        for running in [threads.submit(run, script) for script in scripts]:
            running.result(LIMIT)
    goes_on, stopped = scripts
    assert "another rank was stopped" in str(goes_on.error)
    assert (goes_on.stopped, goes_on.loader.over) == ([], "")
    reason = "stop() was called" if how == "stop" else DRAINED
    assert (stopped.error, stopped.stopped, list(stopped.loader)) == (None, [reason], [])
    assert goes_on.checkpoints.committed == stopped.checkpoints.committed == goes_on.checkpoints.step >= 5
    for script in scripts:
        script.loader.close()
    alone = Script(j, data, tmp_path / "saved")
    alone.run()
    assert alone.seen, "the ranks have trained all records before the stop"
    alone.loader.close()
    lab.once_per_pass(goes_on.seen + stopped.seen + alone.seen, 400, 1)
    j.verify()


RECORDS, PASSES = 600, 3

LEDGER = """
import json, os, pathlib, sys, time
import torch, torch.distributed as dist
import trainmaster as tm
from lab import number_of
torch.set_num_threads(1)
here = pathlib.Path(sys.argv[1])
options = json.loads((here / "options").read_text())
dist.init_process_group("gloo")
rank, size, node = dist.get_rank(), dist.get_world_size(), os.environ["NODE"]

class Ledger(torch.nn.Module):  # a model that knows how often each record was applied, by its gradients
    def __init__(self):
        super().__init__()
        self.times = torch.nn.Parameter(torch.zeros(options["records"]))
    def forward(self, numbers):
        return self.times[numbers].sum()

model = torch.nn.parallel.DistributedDataParallel(Ledger())
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
loader = tm.torch.DataLoader(
    options["data"], decode=number_of, batch_size=7, num_workers=1, shuffle=True, addr=options["addr"], group=dist.group.WORLD
)
checkpoints = tm.torch.Checkpoints(here / "saved", loader, model=model, optimizer=optimizer, every=4)
checkpoints.restore()
steps = 0
for numbers in loader:
    while steps >= int((here / "budget").read_text() or 0):
        time.sleep(0.01)  # a file: there is nothing to wait on
    steps += 1
    optimizer.zero_grad()
    (-model(numbers) * size * (loader.weight > 0)).backward()
    if steps % 2:
        loader.done()  # F560
    optimizer.step()
    (here / f".pids-{node}").write_text(json.dumps([loader.client.agent_pid, *loader.worker_pids]))
    (here / f".pids-{node}").rename(here / f"pids-{node}")  # the test reads it at any time
    with open(here / "log", "a") as f:
        f.write(f"{node} {rank} {size} {time.time()}\\n")
loader.close()
if rank == 0:
    torch.save(model.module.times.detach(), here / "model.pt")
dist.destroy_process_group()
"""


def test_torchrun_from_1_to_3_to_2_with_kills(tmp_path: pathlib.Path) -> None:
    """F400: ranks, workers, agents and the master are killed, nodes come and go. The model has each record once per pass."""
    data = lab.numbers(tmp_path, RECORDS, per_chunk=10)
    flags = ["--ring", "1:3", "--explicit-commit", "--passes", str(PASSES), "--chunks-per-task", "2", "--session-ttl", "60s"]
    job = lab.Job(tmp_path / "master", *flags)
    (tmp_path / "options").write_text(json.dumps({"data": data, "addr": job.addr, "records": RECORDS}))
    (tmp_path / "budget").write_text("6")
    nodes = Nodes(tmp_path, job.addr, LEDGER, str(pathlib.Path(__file__).parent))

    def pids(node: str) -> list[int]:
        return list(json.loads((tmp_path / f"pids-{node}").read_text()))

    try:
        nodes.start("a")
        nodes.await_steps("a")
        for name in "bc":
            nodes.start(name)
        nodes.await_steps("a", "b", "c")
        lab.kill(pids("b")[1])  # a worker of the DataLoader: the rank goes on
        job.kill()
        job.start()
        begin = nodes.position()
        (tmp_path / "budget").write_text("12")
        nodes.await_steps("a", "b", "c", begin=begin)
        lab.kill(pids("c")[0])  # an agent: all ranks start again
        (tmp_path / "budget").write_text("13")
        nodes.await_steps("a", "b", "c")
        nodes.kill("a")
        nodes.await_steps("b", "c")
        (tmp_path / "budget").write_text("1000000")
        assert nodes.end() == {"b": 0, "c": 0}, nodes.logs()
        assert torch.load(tmp_path / "model.pt").unique(return_counts=True)[0].tolist() == [PASSES], nodes.logs()
        assert [(p["missing"], p["counted_twice"]) for p in job.verify()] == [(0, 0)] * PASSES
    finally:
        nodes.stop()
        job.stop()
