"""The benchmarks run, and their figures have the documented form."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "trainmaster.bench", *arguments], capture_output=True, text=True, check=False, timeout=900)


@pytest.mark.long
def test_figures_as_json() -> None:
    done = bench("--only", "records", "--only", "killed", "--only", "loader", "--only", "agreement", "--runs", "1", "-o", "json")
    assert done.returncode == 0, done.stderr
    figures = {f["name"]: f for f in json.loads(done.stdout)["figures"]}
    assert set(figures) == {
        "1 KB records", "memory of the agent, reading", "killed trainer to its task with another, p99",
        "DataLoader, records/s", "DataLoader, records/s, shuffled", "agreement of 3 ranks behind a step, p50",
    }  # fmt: skip
    for f in figures.values():
        assert f["value"] > 0
        assert f["meets_limit"] == (f["value"] <= f["limit"] if f["unit"] in {"MB", "ms", "us"} else f["value"] >= f["limit"])
    assert set(figures["1 KB records"]["detail"]["cpu_ms"]) == {"python", "agent", "master"}


def test_table_and_bad_arguments() -> None:
    assert bench("--only", "parameters", "--runs", "1").stdout.startswith("MEASUREMENT      VALUE")
    assert "invalid choice: 'pods'" in bench("--only", "pods").stderr
    assert "--runs: expected at least 1, found 0" in bench("--runs", "0").stderr
