"""Puts the program bin/master of the checkout into the wheel, as the script `trainmaster`. Without one, it is built first.

The wheel is of one platform: of GOOS and GOARCH, or of this machine.
"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import subprocess
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "x86_64": "x86_64", "aarch64": "aarch64"}


class Hook(BuildHookInterface):  # type: ignore[type-arg]
    """The hook of pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the program and its version to a wheel."""
        if self.target_name != "wheel":
            return
        program = _program(pathlib.Path(self.root).parent)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"
        build_data["shared_scripts"][str(program)] = "trainmaster"
        if version == "editable":
            return  # any version of the program is accepted
        made = self._made()
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(f'"""Version of the program in this package."""\n\nMASTER: str = {_version_of(program)!r}\n')
        build_data["force_include"][str(made)] = "trainmaster/_build.py"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the file that was made."""
        self._made().unlink(missing_ok=True)

    def _made(self) -> pathlib.Path:
        return pathlib.Path(self.directory) / "_build.py"


def _program(checkout: pathlib.Path) -> pathlib.Path:
    """Return the path of the program, which is built if there is none."""
    named = os.environ.get("TRAINMASTER_BIN")
    program = pathlib.Path(named or checkout / "bin" / "master").resolve()
    if os.access(program, os.X_OK):
        return program
    missing = f"{program}: expected the program for the wheel, found none"
    if named:
        raise FileNotFoundError(f"{missing}: correct TRAINMASTER_BIN, or unset it")
    if not (checkout / "cmd" / "master").is_dir():
        raise FileNotFoundError(f"{missing}: build the wheel in a checkout of the project, or set TRAINMASTER_BIN")
    try:
        subprocess.run(["make", "build"], cwd=checkout, check=True)
    except (OSError, subprocess.CalledProcessError) as e:
        raise FileNotFoundError(f"{missing}, and `make build` in {checkout} has failed: install make and Go, or set TRAINMASTER_BIN ({e})") from e
    return program


def _version_of(program: pathlib.Path) -> str:
    named = os.environ.get("TRAINMASTER_VERSION")  # of a program of another platform
    if named:
        return named
    shown = subprocess.run([program, "version", "-o", "json"], check=True, capture_output=True, text=True)
    return str(json.loads(shown.stdout)["version"])


def _platform() -> str:
    system = os.environ.get("GOOS") or platform.system().lower()
    machine = _MACHINES[os.environ.get("GOARCH") or platform.machine()]
    if system == "linux":
        return f"manylinux_2_17_{machine}"
    if system == "darwin":
        return "macosx_12_0_" + {"aarch64": "arm64"}.get(machine, machine)
    raise ValueError(f"GOOS: expected linux or darwin, found {system}")
