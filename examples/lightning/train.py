"""Train a network on digits with Lightning. README.md in the same directory explains it."""

import struct
import typing

import lightning
import torch

import trainmaster as tm


def parse(record: memoryview | bytes) -> tuple[torch.Tensor, int]:
    """Return image and label of a record of pixels. docs/formats/samples.md has the format."""
    version, kind, scale, label, _ = struct.unpack_from("<BBxxfII", record)
    if (version, kind) != (3, 1):
        raise ValueError(f"expected a record of pixels, version 3, found version {version}, type {kind}")
    return torch.frombuffer(bytearray(record[16:]), dtype=torch.uint8) * scale, label


class Digits(lightning.LightningModule):  # type: ignore[misc] # mypy does not read lightning
    """A two-layer network."""

    def __init__(self) -> None:
        """Make it."""
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def training_step(self, dataloader_iter: typing.Any) -> torch.Tensor:
        """Train on the next batch. With this argument, Lightning requests no batch before the last one is trained."""
        (x, y), _, _ = next(dataloader_iter)
        return torch.nn.functional.cross_entropy(self.layers(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    """Train to the end of the job, and measure the model on the test data."""
    lightning.seed_everything(1)
    torch.set_num_threads(1)
    model = Digits()
    loader = tm.torch.DataLoader("mnist/digits-0*", decode=parse, batch_size=32, num_workers=1)
    trainer = lightning.Trainer(
        max_epochs=1,  # the epoch of Lightning is the whole job, with all of its passes
        use_distributed_sampler=False,  # the master decides which records this process gets
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, train_dataloaders=loader)
    images, labels = map(torch.stack, zip(*((x, torch.tensor(y)) for x, y in map(parse, tm.read_records("mnist/digits-test-*")))))
    accuracy = (model.layers(images).argmax(1) == labels).float().mean().item()
    print(f"test accuracy {accuracy:.1f}")
    loader.close()


if __name__ == "__main__":
    main()
