"""The example examples/mnist as its README runs it, on the digits of the program, with drills."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

from hold import FIRST
from lab import MASTER

HOLD = pathlib.Path(__file__).parent / "hold.py"
EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "mnist" / "train.py"


def run(directory: pathlib.Path, *args: str) -> str:
    """Run the program in a directory, and return what it prints. It must exit with 0."""
    done = subprocess.run([MASTER, *args], cwd=directory, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_example_survives_drills(tmp_path: pathlib.Path) -> None:
    run(tmp_path, "recordio", "convert", "--sample", "digits", "mnist/digits")
    release = tmp_path / "release"  # until it exists, the trainers are slow: the job must not end before the killed trainer is back
    command = [MASTER, "run", "--data", "mnist/digits-0*", "--masters", "2", "--trainers", "3", "--passes", "80", "--"]
    command += [sys.executable, str(HOLD), str(release), str(EXAMPLE)]
    command += ["--train", "mnist/digits-0*", "--test", "mnist/digits-test-*", "--workers", "1"]
    with (tmp_path / "run.log").open("wb") as log:
        job = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")})

    def said() -> list[str]:
        return [p.read_text() for p in sorted(tmp_path.glob("trainmaster-run/001/logs/trainer-*.log"))]

    def wait_for_batches(n: int) -> None:
        end = time.monotonic() + 150
        while sum(t.count(FIRST) for t in said()) < n:
            assert job.poll() is None, (tmp_path / "run.log").read_text()
            assert time.monotonic() < end, "\n".join(said())
            time.sleep(0.1)  # the logs are files: there is nothing to wait on

    try:
        wait_for_batches(3)
        for drill in ("kill-trainer", "kill-leader"):
            report = run(tmp_path, "drill", drill)
            assert "lost           nothing" in report
            assert "counted twice  nothing" in report
        wait_for_batches(4)
        release.touch()
        assert job.wait(180) == 0, (tmp_path / "run.log").read_text()
    finally:
        if job.poll() is None:
            job.terminate()
            job.wait()
    assert "restarts  2" in (tmp_path / "run.log").read_text()
    accuracies = [float(t.split("test accuracy ")[1].split()[0]) for t in said() if "test accuracy" in t]
    assert len(accuracies) == 3, "\n".join(said())
    assert max(accuracies) > 0.9  # each trainer has a model of its own, and the killed one began again
    run(tmp_path, "verify", "--data-dir", "trainmaster-run/001/etcd")
