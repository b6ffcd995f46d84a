"""The example examples/mnist as its README runs it, on the digits of the program, with drills."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

from lab import MASTER

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "mnist" / "train.py"


def run(directory: pathlib.Path, *args: str) -> str:
    """Run the program in a directory, and return what it prints. It must exit with 0."""
    done = subprocess.run([MASTER, *args], cwd=directory, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_example_survives_drills(tmp_path: pathlib.Path) -> None:
    run(tmp_path, "recordio", "convert", "--sample", "digits", "mnist/digits")
    command = [MASTER, "run", "--data", "mnist/digits-0*", "--masters", "2", "--trainers", "3", "--passes", "80", "--"]
    command += [sys.executable, str(EXAMPLE), "--train", "mnist/digits-0*", "--test", "mnist/digits-test-*", "--workers", "1"]
    with (tmp_path / "run.log").open("wb") as log:
        job = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    try:
        end = time.monotonic() + 90
        while "pass 1/" not in (text := (tmp_path / "run.log").read_text()):
            assert job.poll() is None, text
            assert time.monotonic() < end, text
            time.sleep(0.1)  # the run prints a line now and then: there is nothing to wait on
        for drill in ("kill-trainer", "kill-leader"):
            report = run(tmp_path, "drill", drill)
            assert "lost           nothing" in report
            assert "counted twice  nothing" in report
        assert job.wait(180) == 0, (tmp_path / "run.log").read_text()
    finally:
        if job.poll() is None:
            job.terminate()
            job.wait()
    text = (tmp_path / "run.log").read_text()
    assert "restarts  2" in text
    (directory,) = (tmp_path / "trainmaster-run").iterdir()
    said = [(directory / "logs" / f"trainer-{i}.log").read_text() for i in range(3)]
    accuracies = [float(t.split("test accuracy ")[1].split()[0]) for t in said if "test accuracy" in t]
    assert len(accuracies) == 3
    assert max(accuracies) > 0.9  # each trainer has a model of its own, and the killed one began again
    run(tmp_path, "verify", "--data-dir", str(directory / "etcd"))
