"""Train a two-layer network on the digits with parameter servers. Each trainer of test_ps.py is a process of this program."""

from __future__ import annotations

import json
import os
import pathlib
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import trainmaster as tm


def parse(record: bytes | memoryview) -> tuple[torch.Tensor, int]:
    version, kind, scale, label, _ = struct.unpack_from("<BBxxfII", record)
    assert (version, kind) == (3, 1)
    return torch.frombuffer(bytearray(record[16:]), dtype=torch.uint8) * scale, label


def check(model: torch.nn.Module, opt: tm.torch.ParameterServerOptimizer) -> None:
    """Require that bad input is refused with a sentence, and changes nothing."""
    before = [p.detach().clone() for p in model.parameters()]
    x, y = torch.zeros(4, 64), torch.zeros(4, dtype=torch.int64)
    torch.nn.functional.cross_entropy(model(x), y).backward()
    weight = next(model.parameters())
    assert weight.grad is not None
    weight.grad[3, 5] = float("nan")
    calls: dict[str, Callable[[], Any]] = {
        'gradient "0.weight": element 197 is NaN': opt.step,
        "one model in a session": lambda: tm.ps.Client({"w": np.zeros(2, np.float32)}, lr=0.1),
        "parameter 'w': expected float32, found float64": lambda: tm.ps.Client({"w": np.zeros(2)}, lr=0.1),
        "expected float32, found torch.float16": lambda: tm.torch.ParameterServerOptimizer(torch.nn.Linear(2, 2).half(), lr=0.1),
        "a multiple of push_every, found 2 and 3": lambda: tm.torch.ParameterServerOptimizer(model, lr=0.1, push_every=2, pull_every=3),
        "grads: expected the names of the model": lambda: opt.ps.push(grads={"w": np.zeros(2)}),
        "stage is for mode sync, this client is in mode async": lambda: opt.ps.stage(records=1),
    }
    for words, call in calls.items():
        try:
            call()
        except (tm.Error, ValueError) as e:
            assert words in str(e), e
        else:
            raise AssertionError(words)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    rate, opt.param_groups[0]["lr"] = opt.param_groups[0]["lr"], 0.0
    weight.grad.zero_()
    opt.step()  # as in the first step of a scheduler that warms up
    opt.param_groups[0]["lr"] = rate
    model.zero_grad()  # the gradients are no views then, until the next step
    opt.zero_grad()
    assert weight.grad is not None and not weight.grad.any()


def main() -> None:
    options = json.loads(sys.argv[1])
    torch.manual_seed(1)
    torch.set_num_threads(1)
    data = pathlib.Path(options["data"])
    images, labels = map(torch.stack, zip(*((x, torch.tensor(y)) for x, y in map(parse, tm.read_records(str(data / "test-*"))))))
    model = torch.nn.Sequential(torch.nn.Linear(images.shape[1], 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    loader = tm.torch.DataLoader(str(data / "train-*"), decode=parse, batch_size=32, num_workers=options.get("workers", 0))
    opt = tm.torch.ParameterServerOptimizer(model, **options["optimizer"])
    name = os.environ["TRAINMASTER_TRAINER"]
    if options.get("check") and not loader.over:
        check(model, opt)
    mark = data / f"{name}.pid"
    is_first = not mark.exists()
    if not is_first:
        mark.write_text(str(os.getpid()))
    for i, (x, y) in enumerate(loader):
        if i == 5 and is_first:  # the test kills a trainer here, and the others wait for the next process of it
            mark.write_text(str(os.getpid()))
            while not (data / "go").exists():
                time.sleep(0.01)  # a file: there is nothing to wait on

        def closure() -> torch.Tensor:
            loss = torch.nn.functional.cross_entropy(model(x), y)  # noqa: B023 it is called before the next batch
            loss.backward()
            return loss

        if opt.ps.mode == "sync":
            loss = opt.step(closure)
        else:
            opt.zero_grad()
            loss = closure()
            opt.step()
        loader.report(loss=loss.item())
    opt.pull()
    with torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
    assert opt.ps.version > 0
    with (data / "accuracy").open("a") as f:
        f.write(f"{name} {accuracy:.4f} {opt.ps.version}\n")
    print(f"test accuracy {accuracy:.3f}", flush=True)
    loader.close()


if __name__ == "__main__":
    main()
