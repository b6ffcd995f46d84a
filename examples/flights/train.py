"""Train a wide-and-deep model that predicts late flights, with embeddings on parameter servers. README.md in the same directory explains it."""

import argparse
import datetime
import hashlib
import json
import math
import typing

import torch

import trainmaster as tm

LATE = 15  # minutes


def id_of(*words: object) -> int:
    """Return an int64 id for a category: a hash, so no list of categories is needed."""
    return int.from_bytes(hashlib.blake2b(repr(words).encode(), digest_size=8).digest(), "little", signed=True)


def parse(record: typing.Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Return ids of crossed categories, ids of airports, dense features, and whether the flight was late."""
    flight = json.loads(bytes(record))
    origin, destination = flight["origin"], flight["destination"]
    date = datetime.datetime.strptime(flight["date"], "%Y/%m/%d %H:%M")
    crossed = [id_of("route", origin, destination), id_of("hour", origin, date.hour), id_of("day", origin, date.weekday())]
    angle = 2 * math.pi * (date.hour + date.minute / 60) / 24
    dense = [flight["distance"] / 1000, math.sin(angle), math.cos(angle), *(float(date.weekday() == day) for day in range(7))]
    return torch.tensor(crossed), torch.tensor([id_of(origin), id_of(destination)]), torch.tensor(dense), float(flight["delay"] > LATE)


class WideAndDeep(torch.nn.Module):
    """A linear model of crossed categories, and a network on the embeddings of airports and dense features."""

    def __init__(self) -> None:
        """Make the model."""
        super().__init__()
        self.wide = tm.torch.Embedding("crossed", 1, init="zeros")
        self.airports = tm.torch.Embedding("airports", 8)
        self.deep = torch.nn.Sequential(torch.nn.Linear(2 * 8 + 10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def forward(self, crossed: torch.Tensor, airports: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Return the logit of a late flight."""
        deep: torch.Tensor = self.deep(torch.cat([self.airports(airports).flatten(1), dense], 1))
        wide: torch.Tensor = self.wide(crossed).sum(1)
        return (wide + deep).squeeze(1)


def area_under_curve(logits: torch.Tensor, late: torch.Tensor) -> float:
    """Return the probability that a late flight has a larger logit than another flight."""
    ranks = logits.argsort().argsort().double() + 1
    positives, negatives = late.sum().item(), (1 - late).sum().item()
    return (ranks[late == 1].sum().item() - positives * (positives + 1) / 2) / (positives * negatives)


def main() -> None:
    """Train to the end of the job, and measure the model on the test data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", default="flights/train-*", help="files to train on")
    parser.add_argument("--test", default="flights/test-*", help="files to measure the model on")
    parser.add_argument("--workers", type=int, default=1, help="worker processes")
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = WideAndDeep()
    loader = tm.torch.DataLoader(args.train, decode=parse, batch_size=64, num_workers=args.workers)
    optimizer = tm.torch.ParameterServerOptimizer(model, "adagrad", lr=0.05)

    for crossed, airports, dense, late in loader:
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(crossed, airports, dense), late.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loader.report(loss=loss.item())

    if optimizer.pull():
        *inputs, late = torch.utils.data.default_collate([parse(r) for r in tm.read_records(args.test)])
        with torch.no_grad():
            print(f"test AUC {area_under_curve(model(*inputs), late):.3f}")
    loader.close()


if __name__ == "__main__":
    main()
