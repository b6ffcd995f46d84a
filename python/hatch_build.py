"""Puts the program bin/master of the checkout into the wheel, as the script `trainmaster`.

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
        program = pathlib.Path(os.environ.get("TRAINMASTER_BIN") or pathlib.Path(self.root).parent / "bin" / "master").resolve()
        if not os.access(program, os.X_OK):
            raise FileNotFoundError(f"{program}: expected the program for the wheel, found none: run `make build` in the checkout first")
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
