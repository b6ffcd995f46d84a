"""The examples of docs/python.md and of the READMEs."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from lab import Job

ROOT = pathlib.Path(__file__).parents[2]


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def test_examples_of_the_page_run(job: Callable[..., Job], tmp_path: pathlib.Path) -> None:
    printed = []
    for i, text in enumerate(blocks("docs/python.md") + blocks("docs/python-checkpoints.md")):
        (tmp_path / f"block_{i}.py").write_text(text)
        done = subprocess.run([sys.executable, f"block_{i}.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400)
        assert done.returncode == 0, f"block {i}: {done.stderr}"
        printed.append(done.stdout)
    assert printed[0] == ""
    assert re.fullmatch(r"expected 1\.0, found \d\.\d\n", printed[1])
    assert printed[2] == "pass 1 has 1000 records\npass 2 has 1000 records\n"
    assert printed[3] == "8000 bytes\n"
    assert re.fullmatch(r"continue after step 0\ncommitted step 6\d\n", printed[4])
    j = job()
    (typed,) = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs/python-frameworks.md").read_text(), re.MULTILINE | re.DOTALL)
    typed = typed.replace("127.0.0.1:8080", j.addr).replace(" python ", f" {sys.executable} ")
    assert subprocess.run(["sh", "-c", typed], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=400).stdout == "1000 records\n"
    j.verify()
    (text,) = blocks("docs/python-commands.md")
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400)
    assert done.stdout == "saved, since stop() was called\n", done.stderr


@pytest.mark.parametrize("page", ["README.md", "python/README.md"])
def test_three_lines_run(page: str, tmp_path: pathlib.Path) -> None:
    (text,) = blocks(page)
    head = 'import trainmaster as tm\ndef parse(r): return len(r), 0.0\ntm.write_records("data/train", [b"x"] * 100, shards=2)\n'
    (tmp_path / "script.py").write_text(head + text + "\nprint('done')\n")
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


@pytest.mark.parametrize("path", sorted((ROOT / "python" / "src").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_package_has_the_syntax_of_python_3_10(path: pathlib.Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 10))
