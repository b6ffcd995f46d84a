"""Exact resume of a sharded model: FSDP and torch.distributed.checkpoint with two ranks on gloo."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable

import lab
from test_group import run_ranks

StartJob = Callable[..., lab.Job]
RECORDS, PASSES, EVERY = 200, 2, 4

PROGRAM = """
import json, os, sys
import torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import trainmaster as tm
from lab import number_of
torch.set_num_threads(1)
options = json.loads(sys.argv[1])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()

class Ledger(torch.nn.Module):  # a model that knows how often each record was applied, by its gradients
    def __init__(self):
        super().__init__()
        self.times = torch.nn.Parameter(torch.zeros(options["records"]))
    def forward(self, numbers):
        return self.times[numbers].sum()

model = fully_shard(Ledger(), mesh=init_device_mesh("cpu", (size,)))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
loader = tm.torch.DataLoader(options["data"], decode=number_of, batch_size=7, addr=options["addr"], group=dist.group.WORLD)

def save(path):
    dcp.save({"model": model.state_dict(), "loader": loader.state_dict()}, checkpoint_id=path)

def load(path):
    state = {"model": model.state_dict(), "loader": {"format": 0, "job": "", "step": 0}}
    dcp.load(state, checkpoint_id=path)
    model.load_state_dict(state["model"])
    loader.load_state_dict(state["loader"])

checkpoints = tm.torch.Checkpoints(options["saved"], loader, optimizer=optimizer, every=options["every"], save=save, load=load)
print("begins after step", checkpoints.restore(), flush=True)
for i, numbers in enumerate(loader):
    optimizer.zero_grad()
    (-model(numbers) * size * (loader.weight > 0)).backward()
    optimizer.step()
    if options.get("kill") == [rank, i]:
        os.kill(os.getpid(), 9)
print("applied", model.times.full_tensor().unique().tolist(), flush=True)
loader.close()
dist.destroy_process_group()
"""


def test_sharded_model_has_each_record_once_per_pass(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F489: a rank is killed between two saved steps. Each rank loads its part of the last committed step."""
    data = lab.numbers(tmp_path, RECORDS, per_chunk=10)
    j = job("--passes", str(PASSES), "--chunks-per-task", "2", "--explicit-commit")
    options = {"data": data, "addr": j.addr, "records": RECORDS, "saved": str(tmp_path / "saved"), "every": EVERY}
    killed = run_ranks(PROGRAM, 2, **options, kill=[1, EVERY + 2])
    assert killed[1].returncode == -9, killed[1].stderr
    assert killed[0].returncode > 0, killed[0].stdout
    done = run_ranks(PROGRAM, 2, **options)
    for rank in done:
        assert rank.returncode == 0, rank.stderr
        assert re.fullmatch(rf"begins after step {EVERY}\napplied \[{PASSES}\.0\]\n", rank.stdout), rank.stdout
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0)] * PASSES
