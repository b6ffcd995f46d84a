"""Compare loaders after failures: how often each record is in the model at the end. `make bench-peers` runs it.

Three ranks of a process group train a model that counts how often each record was applied. Every 10 steps, the model and the state of the loader
are saved. A rank is killed with SIGKILL, and two ranks go on from the last saved step. A rank is killed again, and three ranks go on to the
end of two epochs. Each loader is used as its documentation describes.
"""

# ruff: noqa: PLC0415 a rank imports only its own loader

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

RECORDS, EPOCHS, BATCH, EVERY, SEED = 1203, 2, 8, 10, 7
GRACE = 20.0  # seconds for the other ranks to end after a rank was killed; torchrun ends them, too
LIMIT = 600.0  # seconds of a phase


class Phase(NamedTuple):
    """The ranks of a phase, and the rank to kill with its step in the phase. Without a kill, the phase goes to the end."""

    ranks: int
    kill: tuple[int, int] | None


SCHEDULES = [[Phase(3, kill), Phase(2, (kill[0] % 2, 17)), Phase(3, None)] for kill in [(2, 23), (0, 37), (1, 14)]]


class Numbers:
    """A dataset of torch: each record is its number."""

    def __len__(self) -> int:
        """Return the number of records."""
        return RECORDS

    def __getitem__(self, at: int) -> int:
        """Return a record."""
        return at


def number_of(record: Any) -> int:
    """Return the number in a record of a file."""
    return int(struct.unpack("<q", record)[0])


class Model:
    """The model, with the state of the loader: how often each record was applied by all ranks."""

    def __init__(self, directory: pathlib.Path, kill: tuple[int, int] | None) -> None:
        """Load the last saved step."""
        import torch
        import torch.distributed as dist

        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.file, self.kill, self.steps = directory / "saved", kill, 0
        saved = (
            torch.load(self.file)
            if self.file.exists()
            else {"times": torch.zeros(RECORDS, dtype=torch.int64), "epoch": 0, "step": 0, "states": [None]}
        )
        self.times, self.epoch = saved["times"], saved["epoch"]
        self.step = saved["step"]  # in the epoch
        self.state = saved["states"][min(self.rank, len(saved["states"]) - 1)]

    def apply(self, numbers: Any, state: Callable[[], Any]) -> None:
        """Make a step with a batch of each rank. Every 10 steps, save it with the state of the loader."""
        import torch
        import torch.distributed as dist

        times = torch.bincount(torch.as_tensor(numbers), minlength=RECORDS)
        dist.all_reduce(times)
        self.times += times
        self.step += 1
        self.steps += 1
        die(self.kill, self.rank, self.steps)
        if self.steps % EVERY == 0:
            states: list[Any] = [None] * self.ranks
            dist.all_gather_object(states, state())
            if self.rank == 0:
                torch.save({"times": self.times, "epoch": self.epoch, "step": self.step, "states": states}, f"{self.file}.new")
                os.replace(f"{self.file}.new", self.file)
            dist.barrier()

    def end_epoch(self) -> None:
        """Go on with the next epoch."""
        self.epoch, self.step, self.state = self.epoch + 1, 0, None


def die(kill: tuple[int, int] | None, rank: int, steps: int) -> None:
    """Kill this process at its step."""
    if kill == (rank, steps):
        os.kill(os.getpid(), signal.SIGKILL)


def torchdata(directory: pathlib.Path, kill: tuple[int, int] | None) -> list[int]:
    """StatefulDataLoader with its StatefulDistributedSampler. A rank without a state of its own takes that of the last rank."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    model = Model(directory, kill)
    while model.epoch < EPOCHS:
        sampler = StatefulDistributedSampler(Numbers(), num_replicas=model.ranks, rank=model.rank, shuffle=True, seed=SEED)  # type: ignore[arg-type]
        sampler.set_epoch(model.epoch)
        loader: Any = StatefulDataLoader(Numbers(), BATCH, sampler=sampler, num_workers=2)  # type: ignore[arg-type, var-annotated]
        if model.state is not None:
            loader.load_state_dict(model.state)
        for numbers in loader:
            model.apply(numbers, loader.state_dict)
        model.end_epoch()
    return list(model.times.tolist())


def dlrover(directory: pathlib.Path, kill: tuple[int, int] | None) -> list[int]:
    """DLRover's ElasticDistributedSampler, whose state is a number of steps."""
    import torch
    from dlrover.trainer.torch.elastic.sampler import ElasticDistributedSampler

    model = Model(directory, kill)
    while model.epoch < EPOCHS:
        sampler = ElasticDistributedSampler(Numbers(), num_replicas=model.ranks, rank=model.rank, shuffle=True, seed=SEED)
        sampler.set_epoch(model.epoch)
        if model.state is not None:
            sampler.load_state_dict(model.state)
        loader: Any = torch.utils.data.DataLoader(Numbers(), BATCH, sampler=sampler, num_workers=2)  # type: ignore[arg-type, var-annotated]
        for numbers in loader:
            model.apply(numbers, lambda: sampler.state_dict(model.step, BATCH))  # noqa: B023 it is called here
        model.end_epoch()
    return list(model.times.tolist())


def streaming(directory: pathlib.Path, kill: tuple[int, int] | None) -> list[int]:
    """StreamingDataset of mosaicml-streaming with its StreamingDataLoader."""
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    model = Model(directory, kill)
    clean_stale_shared_memory()  # on all ranks: it has a barrier
    dataset = StreamingDataset(local=str(directory / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=BATCH)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=2)
    if model.state is not None:
        loader.load_state_dict(model.state)
    while model.epoch < EPOCHS:
        for batch in loader:
            model.apply(batch["n"], loader.state_dict)
        model.end_epoch()
    return list(model.times.tolist())


def trainmaster(directory: pathlib.Path, kill: tuple[int, int] | None) -> list[int]:
    """DataLoader and Checkpoints of this project, with DistributedDataParallel."""
    import torch
    import torch.distributed as dist

    import trainmaster as tm

    class Ledger(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.times = torch.nn.Parameter(torch.zeros(RECORDS))

        def forward(self, numbers: torch.Tensor) -> torch.Tensor:
            return self.times[numbers].sum()

    plain = Ledger()
    model = torch.nn.parallel.DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = tm.torch.DataLoader(
        str(directory / "numbers-*"), decode=number_of, batch_size=BATCH, num_workers=2, shuffle=True, seed=SEED, group=dist.group.WORLD
    )
    checkpoints = tm.torch.Checkpoints(directory / "steps", loader, model=plain, optimizer=optimizer, every=EVERY)
    checkpoints.restore()
    for steps, numbers in enumerate(loader, 1):
        optimizer.zero_grad()
        (-model(numbers) * dist.get_world_size() * (loader.weight > 0)).backward()
        optimizer.step()
        die(kill, dist.get_rank(), steps)
    times = [round(n) for n in plain.times.tolist()]
    loader.close()
    return times


SYSTEMS: dict[str, Callable[[pathlib.Path, tuple[int, int] | None], list[int]]] = {
    "trainmaster": trainmaster,
    "torchdata": torchdata,
    "dlrover": dlrover,
    "streaming": streaming,
}


def be_rank(system: str, directory: pathlib.Path, kill: tuple[int, int] | None) -> None:
    """Train in this process, as a rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    times = SYSTEMS[system](directory, kill)
    if dist.get_rank() == 0:
        (directory / "times.json").write_text(json.dumps(times), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def run_phase(system: str, directory: pathlib.Path, phase: Phase, environment: dict[str, str]) -> None:
    """Run the ranks of a phase, to the kill or to the end."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    sizes = {"WORLD_SIZE": str(phase.ranks), "LOCAL_WORLD_SIZE": str(phase.ranks)}
    log = directory / "log"
    ranks = []
    with log.open("ab") as out:
        for rank in range(phase.ranks):
            command = [sys.executable, __file__, "--rank", system, str(directory), json.dumps(phase.kill)]
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(subprocess.Popen(command, env={**os.environ, **environment, **shared, **sizes, **own}, stdout=out, stderr=out))
    try:
        if phase.kill is None:
            codes = [r.wait(LIMIT) for r in ranks]
            if any(codes):
                raise RuntimeError(f"{system}: expected exit codes 0, found {codes}: {log.read_text(errors='replace')[-3000:]}")
            return
        code = ranks[phase.kill[0]].wait(LIMIT)
        if code != -signal.SIGKILL:
            raise RuntimeError(f"{system}: expected the end by SIGKILL, found {code}: {log.read_text(errors='replace')[-3000:]}")
        end = time.monotonic() + GRACE
        for r in ranks:
            try:
                r.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                r.terminate()
                end = max(end, time.monotonic() + 2)
    finally:
        for r in ranks:
            r.kill()
            r.wait()


def measure(system: str, schedule: list[Phase]) -> dict[str, int]:
    """Run the phases, and count the records in the model."""
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        directory = pathlib.Path(name)
        environment, master = {}, None
        if system == "streaming":
            from streaming import MDSWriter

            with MDSWriter(out=str(directory / "mds"), columns={"n": "int"}, size_limit=1 << 12) as writer:
                for i in range(RECORDS):
                    writer.write({"n": i})
        if system == "trainmaster":
            import trainmaster as tm
            from trainmaster.local import Local

            tm.write_records(directory / "numbers", (struct.pack("<q", i) for i in range(RECORDS)), shards=3, chunk_bytes=240)
            master = Local(EPOCHS, "--explicit-commit", "--chunks-per-task", "2")
            environment = {"TRAINMASTER_ADDR": master.addr}
        try:
            for phase in schedule:
                run_phase(system, directory, phase, environment)
        finally:
            if master is not None:
                master.close()
        times = json.loads((directory / "times.json").read_text(encoding="utf-8"))
    return {
        "exact": sum(n == EPOCHS for n in times),
        "repeated": sum(n > EPOCHS for n in times),
        "missing": sum(n < EPOCHS for n in times),
    }


def main() -> None:
    """Measure each system, or be a rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("systems", nargs="*", default=list(SYSTEMS), help=f"systems to measure: {', '.join(SYSTEMS)}")
    parser.add_argument("--rank", nargs=3, metavar=("SYSTEM", "DIRECTORY", "KILL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        kill = json.loads(args.rank[2])
        be_rank(args.rank[0], pathlib.Path(args.rank[1]), tuple(kill) if kill else None)
        return
    unknown = set(args.systems) - set(SYSTEMS)
    if unknown:
        parser.error(f"systems: expected {', '.join(SYSTEMS)}, found {', '.join(sorted(unknown))}")
    print(f"{RECORDS} records, {EPOCHS} epochs; 3, 2 and 3 ranks with a kill between them; saved every {EVERY} steps")
    print(f"{'SYSTEM':<14}{'KILLS':<14}{'IN EACH EPOCH ONCE':>20}{'MORE OFTEN':>12}{'LESS OFTEN':>12}")
    for system in args.systems:
        for schedule in SCHEDULES:
            found = measure(system, schedule)
            kills = " ".join(f"{p.kill[0]}@{p.kill[1]}" for p in schedule if p.kill)
            print(f"{system:<14}{kills:<14}{found['exact']:>20}{found['repeated']:>12}{found['missing']:>12}", flush=True)


if __name__ == "__main__":
    main()
