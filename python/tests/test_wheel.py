"""The wheel: it is built from a checkout, installed in an environment of its own, and runs a job with each version of Python that is here."""

from __future__ import annotations

import pathlib
import platform
import shutil
import subprocess
import sys
import zipfile

import pytest
from lab import MASTER

PACKAGE = pathlib.Path(__file__).parent.parent

SCRIPT = """
import trainmaster as tm

if __name__ == "__main__":
    tm.write_records("train", (b"%d" % i for i in range(1000)), shards=2)
    with tm.Client() as client:
        client.report_dataset("train-*")
        print("records", sum(1 for task in client.tasks() for _ in task), "binary", tm._agent.binary())
"""


def checkout(directory: pathlib.Path, build: str) -> pathlib.Path:
    """Make a checkout with this package, whose `make build` is a command, and return the directory of the package."""
    shutil.copytree(PACKAGE, directory / "python", ignore=shutil.ignore_patterns("tests", ".*", "__pycache__"))
    (directory / "cmd" / "master").mkdir(parents=True)
    (directory / "Makefile").write_text(f"build:\n\t{build}\n")
    return directory / "python"


def built(package: pathlib.Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel into dist."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    return subprocess.run(command, cwd=package, env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True, check=False)


def wheel(package: pathlib.Path, **environment: str) -> pathlib.Path:
    done = built(package, **environment)
    assert done.returncode == 0, done.stderr
    (found,) = package.glob("dist/*.whl")
    return found


def pythons() -> list[str]:
    """This Python, and those of other versions that run."""
    others = [p for p in (shutil.which(f"python3.{minor}") for minor in (10, 12, 13)) if p]
    return [sys.executable, *(p for p in others if not subprocess.run([p, "-c", ""], capture_output=True, check=False).returncode)]


def test_installed_wheel_runs_a_job(tmp_path: pathlib.Path) -> None:
    """The program of the checkout is built if there is none. Each version of Python on this machine installs the same wheel."""
    found = wheel(checkout(tmp_path / "checkout", f"mkdir -p bin && cp {MASTER} bin/master"))
    assert found.name.endswith(f"-py3-none-manylinux_2_17_{platform.machine()}.whl"), found
    for python in pythons():
        own = tmp_path / pathlib.Path(python).name
        subprocess.run([python, "-m", "venv", own], check=True)
        subprocess.run([own / "bin" / "python3", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", found], check=True)
        (own / "walk.py").write_text(SCRIPT)
        done = subprocess.run([own / "bin" / "python3", "walk.py"], cwd=own, env={"HOME": str(own)}, capture_output=True, text=True, check=False)
        assert done.stdout == f"records 1000 binary {own / 'bin' / 'trainmaster'}\n", done.stderr


def test_wheel_of_another_platform_has_its_name(tmp_path: pathlib.Path) -> None:
    package = checkout(tmp_path, "false")
    program = tmp_path / "program"
    program.write_text("of another platform")
    program.chmod(0o755)
    found = wheel(package, TRAINMASTER_BIN=str(program), TRAINMASTER_VERSION="1.2.3", GOOS="darwin", GOARCH="arm64")
    assert found.name.endswith("-py3-none-macosx_12_0_arm64.whl"), found
    with zipfile.ZipFile(found) as z:
        (script,) = (i for i in z.infolist() if i.filename.endswith(".data/scripts/trainmaster"))
        assert z.read(script) == b"of another platform"
        assert script.external_attr >> 16 & 0o111
        assert b"MASTER: str = '1.2.3'" in z.read("trainmaster/_build.py")


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "/bin/master: expected the program for the wheel, found none, and `make build` in"),
        ({"TRAINMASTER_BIN": "/none"}, "/none: expected the program for the wheel, found none: correct TRAINMASTER_BIN, or unset it"),
        ({"GOOS": "plan9", "TRAINMASTER_BIN": MASTER}, "GOOS: expected linux or darwin, found plan9"),
    ],
)
def test_wheel_without_a_program_is_refused(tmp_path: pathlib.Path, environment: dict[str, str], said: str) -> None:
    done = built(checkout(tmp_path, "false"), **environment)
    assert done.returncode == 1
    assert said in done.stderr


def test_wheel_outside_of_a_checkout_is_refused(tmp_path: pathlib.Path) -> None:
    package = checkout(tmp_path, "false")
    (tmp_path / "cmd" / "master").rmdir()
    assert "found none: build the wheel in a checkout of the project, or set TRAINMASTER_BIN" in built(package).stderr
