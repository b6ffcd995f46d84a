"""Fixtures: jobs that end with their test."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator

import pytest
from lab import Job

for name in [n for n in os.environ if n.startswith("TRAINMASTER_") and n != "TRAINMASTER_BIN"]:
    del os.environ[name]


@pytest.fixture
def job(tmp_path: pathlib.Path) -> Iterator[Callable[..., Job]]:
    """Start a master: job(*flags)."""
    jobs: list[Job] = []

    def start(*flags: str) -> Job:
        jobs.append(Job(tmp_path / f"job-{len(jobs)}", *flags))
        return jobs[-1]

    yield start
    for j in jobs:
        j.stop()
