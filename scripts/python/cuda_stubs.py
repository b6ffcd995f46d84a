"""Lets PyTorch run without CUDA: it compiles empty libraries with the names and symbols of CUDA that the wheel of PyTorch is linked with.

    python cuda_stubs.py DIRECTORY

DIRECTORY is torch/lib. The dynamic linker loads the libraries of CUDA, which have several GB, when torch is imported. Each function of
an empty library returns 100, which means that there is no device. It needs gcc and binutils.
"""

from __future__ import annotations

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

NO_DEVICE = 100


def main(directory: pathlib.Path) -> None:
    """Compile what the libraries in a directory lack."""
    own = {p.name for p in directory.glob("*.so*")}
    needed: set[str] = set()
    symbols: dict[str, dict[str, set[str]]] = collections.defaultdict(lambda: collections.defaultdict(set))  # library -> version -> symbols
    for library in sorted(directory.glob("*.so")):
        head = output("objdump", "-p", str(library))
        needed |= {n for n in re.findall(r"NEEDED +(\S+)", head) if n not in own and re.match(r"lib(cu|nv|nccl)", n) and n != "libcuda.so.1"}
        versions: dict[str, str] = {}
        file = ""
        for line in head.partition("Version References:")[2].splitlines():
            if found := re.match(r"  required from (.*):", line):
                file = found[1]
            elif found := re.match(r"    0x\S+ \S+ \S+ (\S+)", line):
                versions[found[1]] = file
        for line in output("nm", "-D", "--undefined-only", str(library)).splitlines():
            name, _, version = line.split()[-1].partition("@")
            if version:
                symbols[versions.get(version, "")][version].add(name)
            elif re.match(r"(cu|nv|nccl)[A-Za-z]", name) and "nvtx" not in name:
                symbols["libcudart.so.13"][""].add(name)
    for name in sorted(needed):
        compile_stub(directory / name, symbols[name])


def compile_stub(path: pathlib.Path, versions: dict[str, set[str]]) -> None:
    """Compile an empty library."""
    functions = {s: f"int {s}(void) {{ return {NO_DEVICE}; }}" for names in versions.values() for s in names}
    if "cudaGetErrorString" in functions:
        functions["cudaGetErrorString"] = 'const char *cudaGetErrorString(void) { return "no CUDA in this environment"; }'
    with tempfile.TemporaryDirectory() as work:
        source, script = pathlib.Path(work, "stub.c"), pathlib.Path(work, "stub.map")
        source.write_text("\n".join([*functions.values(), ""]))
        script.write_text("".join(f"{v} {{ global: {' '.join(f'{s};' for s in sorted(names))} }};\n" for v, names in versions.items() if v))
        flags = [f"-Wl,--version-script={script}"] if script.stat().st_size else []
        command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", "-o", path, source, f"-Wl,-soname={path.name}", *flags]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def output(*command: str) -> str:
    """Return what a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
