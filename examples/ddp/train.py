"""Train a network on digits with the ranks of torchrun, which come and go. README.md in the same directory explains it."""

import argparse
import os
import struct
import sys
import typing

import torch
import torch.distributed as dist

import trainmaster as tm


def parse(record: typing.Any) -> tuple[torch.Tensor, int]:
    """Return image and label of a record of pixels. docs/formats/samples.md has the format."""
    version, kind, scale, label, _ = struct.unpack_from("<BBxxfII", record)
    if (version, kind) != (3, 1):
        raise ValueError(f"expected a record of pixels, version 3, found version {version}, type {kind}")
    return torch.frombuffer(bytearray(record[16:]), dtype=torch.uint8) * scale, label


def main() -> None:
    """Train to the end of the job. Rank 0 measures the model on the test data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", default="mnist/digits-0*", help="files to train on")
    parser.add_argument("--test", default="mnist/digits-test-*", help="files to measure the model on")
    parser.add_argument("--saved", default="ddp-saved", help="directory of the saved steps, which all ranks share")
    parser.add_argument("--workers", type=int, default=1, help="worker processes of each rank")
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(1)
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    images, labels = map(torch.stack, zip(*((x, torch.tensor(y)) for x, y in map(parse, tm.read_records(args.test)))))
    model = torch.nn.Sequential(torch.nn.Linear(images.shape[1], 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(device)
    ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device] if on_gpu else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = tm.torch.DataLoader(args.train, decode=parse, batch_size=16, num_workers=args.workers, shuffle=True, group=dist.group.WORLD)
    checkpoints = tm.torch.Checkpoints(args.saved, loader, model=model, optimizer=optimizer, every=50)
    step = checkpoints.restore()
    print(f"rank {rank} of {ranks} begins after step {step}, process {os.getpid()}", flush=True)

    loader.on_stop(sys.exit)  # torchrun stops the ranks when a node joins or leaves. The other ranks end with RankStoppedError, and start again
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(ddp(x.to(device)), y.to(device))
        optimizer.zero_grad()
        (loss * loader.weight).backward()
        optimizer.step()

    checkpoints.finish()
    if rank == 0:
        with torch.no_grad():
            accuracy = (model(images.to(device)).argmax(1).cpu() == labels).float().mean().item()
        print(f"test accuracy {accuracy:.2f} after step {checkpoints.committed}", flush=True)
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
