"""A rank of the measurement of the agreement: python -m trainmaster.bench.rank ADDRESS RANK SIZE STEPS."""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist

from .._group import Agreed
from ..torch._group import Group

_STEP = 0.002  # seconds


def main(address: str, rank: int, size: int, steps: int) -> None:
    """Agree before each step, and print what it adds to the step, in microseconds: hidden behind the step, and alone."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=size)
    group = Group(dist.group.WORLD)
    hidden, alone = [], []
    for i in range(steps + 100):  # the first ones are a warm-up
        began = time.perf_counter()
        group.begin(Agreed(samples=64, ranks=1))
        begun = time.perf_counter()
        time.sleep(_STEP)
        asked = time.perf_counter()
        group.agreed()
        if i >= 100:
            hidden.append(1e6 * (begun - began + time.perf_counter() - asked))
    for _ in range(steps):
        began = time.perf_counter()
        group.begin(Agreed(samples=64, ranks=1))
        group.agreed()
        alone.append(1e6 * (time.perf_counter() - began))
    if rank == 0:
        print(json.dumps({"hidden": hidden, "alone": alone}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
