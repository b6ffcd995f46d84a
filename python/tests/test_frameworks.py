"""The examples with JAX, Lightning and transformers, as their READMEs have them, and the rules of docs/python-frameworks.md."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lab import MASTER, Job, number_of, numbers, once_per_pass

import trainmaster as tm
from trainmaster._group import GroupLoop

ROOT = pathlib.Path(__file__).parents[2]
StartJob = Callable[..., Job]


@pytest.mark.parametrize("name", ["jax", "lightning", "transformers"])
def test_example_prints_what_its_readme_says(name: str, tmp_path: pathlib.Path) -> None:
    readme = (ROOT / "examples" / name / "README.md").read_text()
    _, commands, _, output, _ = re.split(r"^```(?:sh)?\n", readme, flags=re.MULTILINE)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "trainmaster").symlink_to(MASTER)
    (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    shutil.copytree(ROOT / "examples" / name, tmp_path / "examples" / name)
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-ec", commands], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("\n" + output), done.stdout
    state = next((tmp_path / "trainmaster-run").glob("*/etcd"))
    subprocess.run([MASTER, "verify", "--data-dir", str(state)], check=True, stdout=subprocess.DEVNULL)


def parse(record: memoryview) -> dict[str, Any]:
    import torch

    n = number_of(record)
    return {"x": torch.tensor([float(n)]), "number": torch.tensor(n)}


def small_trainer(loader: Any, directory: pathlib.Path, trained: Callable[[list[int]], None], **settings: Any) -> Any:
    """A Trainer of transformers with a model that reports what it is trained on."""
    import torch
    import transformers

    class Trainer(tm.hf.TrainerMixin, transformers.Trainer):  # type: ignore[misc] # mypy does not read transformers
        pass

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor, number: torch.Tensor) -> dict[str, torch.Tensor]:
            trained(number.tolist())
            return {"loss": (x * self.weight).mean()}

    more = {
        "max_steps": 100000,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "remove_unused_columns": False,
        **settings,
    }
    return Trainer(Model(), transformers.TrainingArguments(str(directory), **more), loader=loader)


def test_trainer_of_transformers_trains_each_record_once(job: StartJob, tmp_path: pathlib.Path) -> None:
    """Also after a resume from a checkpoint: the Trainer itself skips no batches."""
    data, j, seen = numbers(tmp_path, 200), job("--passes", "2", "--chunks-per-task", "1"), Counter[int]()
    loader = tm.torch.DataLoader(data, decode=parse, batch_size=10, addr=j.addr)

    def trained(found: list[int]) -> None:
        assert loader.account.head.records == len(found), "the batch in hand is not the batch that is trained"
        seen.update(found)

    small_trainer(loader, tmp_path / "out", trained, max_steps=7, save_strategy="steps", save_steps=7).train()
    assert not loader.over
    trainer = small_trainer(loader, tmp_path / "out", trained)
    trainer.train(resume_from_checkpoint=True)
    assert loader.over
    assert trainer.state.global_step == 40
    loader.close()
    once_per_pass(seen, 200, 2)
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0), (0, 0)]


def test_bad_settings_of_transformers_are_explained(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 100), job()
    loader = tm.torch.DataLoader(data, decode=parse, batch_size=10, addr=j.addr)
    with pytest.raises(ValueError, match="gradient_accumulation_steps: expected 1, found 2"):
        small_trainer(loader, tmp_path, print, gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="max_steps: expected the number of steps of the schedule, found -1"):
        small_trainer(loader, tmp_path, print, max_steps=-1)
    loader._group_loop = GroupLoop(loader, cast("Any", SimpleNamespace(size=2)))
    with pytest.raises(ValueError, match="loader: expected a loader without group=, found a group of 2 ranks"):
        small_trainer(loader, tmp_path, print)
    loader.close()


def test_lightning_with_max_steps_counts_its_last_batch_by_done(job: StartJob, tmp_path: pathlib.Path) -> None:
    import lightning
    import torch

    seen = Counter[int]()

    class Model(lightning.LightningModule):  # type: ignore[misc] # mypy does not read lightning
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, dataloader_iter: Any) -> Any:
            batch, _, _ = next(dataloader_iter)
            seen.update(batch["number"].tolist())
            return self.layer(batch["x"]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    data, j = numbers(tmp_path, 200), job("--chunks-per-task", "1")
    loader = tm.torch.DataLoader(data, decode=parse, batch_size=8, addr=j.addr)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    lightning.Trainer(max_epochs=1, max_steps=10, accelerator="cpu", use_distributed_sampler=False, **quiet).fit(Model(), loader)
    loader.done()
    for batch in loader:
        seen.update(batch["number"].tolist())
    loader.close()
    once_per_pass(seen, 200, 1)
    j.verify()
