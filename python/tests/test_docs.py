"""The examples of docs/python.md and of the READMEs."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from lab import Job

import trainmaster as tm

ROOT = pathlib.Path(__file__).parents[2]


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def test_examples_of_the_page_run(job: Callable[..., Job], tmp_path: pathlib.Path) -> None:
    printed = []
    for i, text in enumerate(blocks("docs/python.md")):
        (tmp_path / f"block_{i}.py").write_text(text)
        done = subprocess.run([sys.executable, f"block_{i}.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400)
        assert done.returncode == 0, f"block {i}: {done.stderr}"
        printed.append(done.stdout)
    assert printed[0] == ""
    assert re.fullmatch(r"expected 1\.0, found \d\.\d\n", printed[1])
    assert printed[2] == "pass 1 has 1000 records\npass 2 has 1000 records\n"
    assert printed[3] == "8000 bytes\n"
    j = job()
    (typed,) = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs/python-frameworks.md").read_text(), re.MULTILINE | re.DOTALL)
    typed = typed.replace("127.0.0.1:8080", j.addr).replace(" python ", f" {sys.executable} ")
    assert subprocess.run(["sh", "-c", typed], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=400).stdout == "1000 records\n"
    j.verify()
    (text,) = blocks("docs/python-commands.md")
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400)
    assert done.stdout == "saved, since stop() was called\n", done.stderr


def test_example_of_exact_resume_continues_after_a_kill(job: Callable[..., Job], tmp_path: pathlib.Path) -> None:
    (text,) = blocks("docs/python-checkpoints.md")
    tm.write_records(tmp_path / "data" / "train", [b"record"] * 1000, shards=4, chunk_bytes=512)
    j = job("--explicit-commit", "--passes", "3")
    killed = "    optimizer.step()\n    if checkpoints.step == 44:\n        checkpoints.finish(); import os; os.kill(os.getpid(), 9)\n"
    printed = []
    for script in (text.replace("    optimizer.step()\n", killed), text):
        (tmp_path / "train.py").write_text(script)
        command, environment = [sys.executable, "train.py"], {**os.environ, "TRAINMASTER_ADDR": j.addr}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=400)
        assert done.returncode == (-9 if script != text else 0), done.stderr
        printed.append(done.stdout)
    assert re.fullmatch(r"continue after step 4\d\ncommitted step 6\d\n", printed[1]), printed
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0)] * 3


def test_example_without_a_framework_continues_after_kills(job: Callable[..., Job], tmp_path: pathlib.Path) -> None:
    """F537: before the commit of a step, and after it."""
    (text,) = (b for b in blocks("docs/python-frameworks.md") if "last_step()" in b)
    tm.write_records(tmp_path / "data" / "train", [b"record"] * 1000, shards=4, chunk_bytes=512)
    j = job("--explicit-commit", "--passes", "3", "--chunks-per-task", "1")
    kill = "    if step == {}:\n        import os; os.kill(os.getpid(), 9)\n"
    before = text.replace("    client.flushed(step)\n", kill.format(4) + "    client.flushed(step)\n")
    after = text.replace("    client.commit(step)\n", "    client.commit(step)\n" + kill.format(9))
    done = []
    for script in (before, after, text):
        (tmp_path / "train.py").write_text(script)
        command, environment = [sys.executable, "train.py"], {**os.environ, "TRAINMASTER_ADDR": j.addr}
        done.append(subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=400))
    assert [d.returncode for d in done] == [-9, -9, 0], done
    assert done[-1].stdout == "the job has ended: 3000 records\n"
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0)] * 3


@pytest.mark.parametrize("page", ["README.md", "python/README.md"])
def test_three_lines_run(page: str, tmp_path: pathlib.Path) -> None:
    (text,) = blocks(page)
    head = 'import trainmaster as tm\ndef parse(r): return len(r), 0.0\ntm.write_records("data/train", [b"x"] * 100, shards=2)\n'
    (tmp_path / "script.py").write_text(head + text + "\nprint('done')\n")
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
