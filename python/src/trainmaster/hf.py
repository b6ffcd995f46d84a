"""For transformers: `TrainerMixin` trains a `transformers.Trainer` on the batches of a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import TrainerCallback

from ._check import instance
from .loader import Loader


class _Notes(TrainerCallback):  # type: ignore[misc] # transformers has no types
    """Notes what is trained, when it is trained: the Trainer may end without asking for the next batch."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note that the batch in hand is trained."""
        self.loader.done()

    def on_log(self, *_: Any, logs: dict[str, Any] | None = None, **__: Any) -> None:
        """Report the loss."""
        if logs and "loss" in logs:
            self.loader.report(loss=float(logs["loss"]))


class _Batches:
    """The batches of the job, to its end, for the Trainer. It has no length."""

    def __init__(self, loader: Loader, trainer: Any) -> None:
        self.loader, self.trainer = loader, trainer

    def __iter__(self) -> Iterator[Any]:
        yield from self.loader
        self.trainer.control.should_training_stop = True


class TrainerMixin:
    """`class Trainer(tm.hf.TrainerMixin, transformers.Trainer)`: `Trainer(..., loader=loader)` trains to the end of the job.

    The master decides which records this process gets, so accelerate does not divide the batches between the processes, and no batches are
    skipped after `resume_from_checkpoint`. `max_steps` is the length of the schedule of the learning rate. Training ends with the job, or
    after `max_steps`. It must be a batch for each step: `gradient_accumulation_steps` is 1.
    """

    def __init__(self, *args: Any, loader: Loader, **kwargs: Any) -> None:
        """See the class."""
        self.loader = instance("loader", loader, Loader, "a loader of trainmaster")
        if kwargs.get("train_dataset") is not None:
            raise TypeError("train_dataset: expected no such argument: the loader has the records")
        if loader.group is not None:
            raise ValueError(
                f"loader: expected a loader without group=, found a group of {loader.group.size} ranks: the Trainer does not multiply the loss by "
                "loader.weight. Train in one process, or in a loop of your own"
            )
        super().__init__(*args, **kwargs)
        settings = self.args  # type: ignore[attr-defined]
        if settings.gradient_accumulation_steps != 1:
            raise ValueError(
                f"gradient_accumulation_steps: expected 1, found {settings.gradient_accumulation_steps}: "
                "a batch counts when the next one is requested, so use a larger batch_size of the loader"
            )
        if settings.max_steps <= 0:
            raise ValueError(
                f"max_steps: expected the number of steps of the schedule, found {settings.max_steps}: the job has no length that a trainer knows"
            )
        settings.ignore_data_skip = True
        self.add_callback(_Notes(loader))  # type: ignore[attr-defined]

    def get_train_dataloader(self) -> _Batches:
        """Return the batches of the job, which accelerate does not see."""
        return _Batches(self.loader, self)
