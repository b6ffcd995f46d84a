"""Train a two-layer network on MNIST with the tasks of a job. README.md in the same directory explains it."""

import argparse
import struct
import typing

import torch

import trainmaster as tm


def parse(record: typing.Any) -> tuple[torch.Tensor, int]:
    """Return image and label of a record of pixels. docs/formats/samples.md has the format."""
    version, kind, scale, label, _ = struct.unpack_from("<BBxxfII", record)
    if (version, kind) != (3, 1):
        raise ValueError(f"expected a record of pixels, version 3, found version {version}, type {kind}")
    return torch.frombuffer(bytearray(record[16:]), dtype=torch.uint8) * scale, label


def main() -> None:
    """Train to the end of the job, and measure the model on the test data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", default="mnist/train-*", help="files to train on")
    parser.add_argument("--test", default="mnist/test-*", help="files to measure the model on")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(1)
    images, labels = map(torch.stack, zip(*((x, torch.tensor(y)) for x, y in map(parse, tm.read_records(args.test)))))
    model = torch.nn.Sequential(torch.nn.Linear(images.shape[1], 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    loader = tm.torch.DataLoader(args.train, decode=parse, batch_size=64, num_workers=args.workers)
    optimizer = tm.torch.ParameterServerOptimizer(model, "adam", lr=1e-3)

    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loader.report(loss=loss.item())

    if optimizer.pull():
        with torch.no_grad():
            accuracy = (model(images).argmax(1) == labels).float().mean().item()
        print(f"test accuracy {accuracy:.2f}")
    loader.close()


if __name__ == "__main__":
    main()
