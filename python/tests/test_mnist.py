"""The example examples/mnist as its README runs it, with the drills, on the digits of the program."""

from __future__ import annotations

import doctest
import itertools
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator

from hold import FIRST
from lab import MASTER

import trainmaster as tm

HERE = pathlib.Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "mnist"


def commands() -> dict[str, str]:
    """Return the commands in the README with their output."""
    blocks = re.findall(r"^```console\n(.*?)^```", (EXAMPLE / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return dict(itertools.chain.from_iterable(re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", b, re.MULTILINE) for b in blocks))


def require(output: str, command: str) -> None:
    """Require the output that the README shows, in which ... stands for any text."""
    assert doctest.OutputChecker().check_output(commands()[command], output, doctest.ELLIPSIS), f"{command}\n{output}"


def run(directory: pathlib.Path, command: str) -> None:
    """Run a command of the README. It must exit with 0, with the output of the README."""
    own = {"trainmaster": MASTER, "python": sys.executable, "examples/mnist/train.py": str(EXAMPLE / "train.py")}
    arguments = [own.get(a, a) for a in shlex.split(command)]
    done = subprocess.run(arguments, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout
    require(done.stdout, command)


def write_digits(directory: pathlib.Path) -> None:
    """Write the digits of the program under the names of MNIST's files, with each record 20 times in the training data."""
    command = [MASTER, "recordio", "convert", "--sample", "digits", "digits"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr

    def records(pattern: str, times: int) -> Iterator[bytes]:
        found = [bytes(r) for r in tm.read_records(str(directory / pattern))]
        return itertools.chain.from_iterable(itertools.repeat(found, times))

    tm.write_records(directory / "mnist" / "train", records("digits-0*", 20), shards=8, chunk_bytes=1 << 15)
    tm.write_records(directory / "mnist" / "test", records("digits-test-*", 1), shards=1)


def test_example_survives_drills(tmp_path: pathlib.Path) -> None:
    write_digits(tmp_path)
    release = tmp_path / "release"  # until it exists, the trainers are slow: the job must not end before the killed trainer is back
    command, kill_trainer, kill_leader, accuracy, verify, *_ = commands()
    words = shlex.split(command)
    assert words[0] == "trainmaster"
    assert words[-2:] == ["python", "examples/mnist/train.py"]
    words[0], words[-2:] = MASTER, [sys.executable, str(HERE / "hold.py"), str(release), str(EXAMPLE / "train.py")]
    output = tmp_path / "output"
    with output.open("wb") as f:
        job = subprocess.Popen(words, cwd=tmp_path, stdout=f, stderr=f, env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")})

    def logs() -> list[str]:
        return [p.read_text() for p in sorted(tmp_path.glob("trainmaster-run/001/logs/trainer-*.log"))]

    def explain() -> str:
        return "\n".join([output.read_text(), *logs()])

    def wait_for_batches(n: int) -> None:
        end = time.monotonic() + 300
        while sum(t.count(FIRST) for t in logs()) < n:
            assert job.poll() is None, explain()
            assert time.monotonic() < end, explain()
            time.sleep(0.1)  # the logs are files: there is nothing to wait on

    try:
        wait_for_batches(3)
        run(tmp_path, kill_trainer)
        run(tmp_path, kill_leader)
        wait_for_batches(4)
        release.touch()
        assert job.wait(300) == 0, explain()
    finally:
        if job.poll() is None:
            job.terminate()
            job.wait()
    require(output.read_text(), command)
    run(tmp_path, accuracy)
    run(tmp_path, verify)


def test_example_trains_the_digits_of_the_program(tmp_path: pathlib.Path) -> None:
    *_, convert, train = commands()
    run(tmp_path, convert)
    run(tmp_path, train)
    assert "test accuracy 0.9" in "".join(p.read_text() for p in tmp_path.glob("trainmaster-run/001/logs/trainer-*.log"))


LATE = """
import os, pathlib, time
import trainmaster as tm

is_killed = os.environ["TRAINMASTER_TRAINER"] == "trainer-1"
killed, back, master = (pathlib.Path(p) for p in ("killed", "back", "trainmaster-run/001/logs/master.log"))
if is_killed and killed.exists():
    back.touch()
    while "done: the job ended" not in master.read_text():
        time.sleep(0.01)  # files: there is nothing to wait on
with tm.Client() as client:
    for task in client.tasks():
        if is_killed:
            killed.touch()
            os.kill(os.getpid(), 9)
        while not back.exists():
            time.sleep(0.01)
    print(client.over, flush=True)
"""


def test_trainer_that_starts_after_the_end_of_the_job_exits(tmp_path: pathlib.Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    tm.write_records(tmp_path / "data", (b"%d" % i for i in range(1000)), shards=2, chunk_bytes=100)
    command = [MASTER, "run", "--data", "data-*", "--trainers", "2", "--", sys.executable, "late.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    logs = [(tmp_path / f"trainmaster-run/001/logs/trainer-{i}.log").read_text() for i in range(2)]
    assert done.returncode == 0, done.stdout + done.stderr + "\n".join(logs)
    assert "restarts  1" in done.stdout
    assert "the job ended before this trainer joined: there is nothing to train" in logs[1], logs[1]
    assert "the job ended before this trainer joined\n" in logs[1], logs[1]
