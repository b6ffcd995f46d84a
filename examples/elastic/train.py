"""Data-parallel training with PyTorch and gloo that survives a change of its members.

Each process begins with the environment of `master worker`. The first process writes a checkpoint after each step, and all
processes begin with it: the directory must be shared by the members. A file `stop` in it ends the training after a step.

usage: train.py DIRECTORY [--steps N] [--pause SECONDS]
"""

import argparse
import os
import time

import torch
import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.05)
    args = parser.parse_args()
    torch.set_num_threads(1)

    dist.init_process_group("gloo")  # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    rank, world = dist.get_rank(), dist.get_world_size()
    generation = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
    checkpoint = os.path.join(args.directory, "checkpoint.pt")
    weights = torch.zeros(4)
    step, stops = torch.zeros(1, dtype=torch.int64), torch.zeros(1)
    if rank == 0 and os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        weights, step = saved["weights"], saved["step"]
    dist.broadcast(weights, 0)
    dist.broadcast(step, 0)

    while step.item() < args.steps and not stops.item():
        gradient = torch.full((4,), float(rank + 1))
        dist.all_reduce(gradient)
        expected = world * (world + 1) / 2  # 1 + 2 + ... of all ranks
        if not torch.equal(gradient, torch.full((4,), expected)):
            raise SystemExit(f"step {step.item()}: expected {expected}, found {gradient.tolist()}")
        weights -= gradient / world
        step += 1
        if rank == 0:
            torch.save({"weights": weights, "step": step}, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
            print(f"step {step.item()} generation {generation} world {world}", flush=True)
            stops.fill_(os.path.exists(os.path.join(args.directory, "stop")))
        dist.broadcast(stops, 0)
        time.sleep(args.pause)
    dist.barrier()
    if rank == 0:
        print(f"done after step {step.item()}", flush=True)


main()
