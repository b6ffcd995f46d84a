"""The example examples/ddp as its README runs it: a node joins, and a rank is killed."""

from __future__ import annotations

import doctest
import pathlib
import re
import shlex
import subprocess

import lab
from hold import FIRST
from test_elastic import Nodes

HERE = pathlib.Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "ddp"


def test_example_survives_a_killed_rank(tmp_path: pathlib.Path) -> None:
    """F488: the nodes end without a traceback, although the ring is closed with the job."""
    readme = (EXAMPLE / "README.md").read_text()
    (start, _), (output,) = (re.findall(rf"^```{kind}\n(.*?)^```", readme, re.MULTILINE | re.DOTALL) for kind in ("sh", "console"))
    convert, master, node = (shlex.split(line.removesuffix("&")) for line in start.replace("\\\n", "").splitlines())
    assert (convert[0], master[0], node[0]) == ("trainmaster", "trainmaster", "torchrun")
    subprocess.run([lab.MASTER, *convert[1:]], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    flags, passes = master[1:-2], master.index("--passes")
    flags[passes] = "8"  # 200 are for a reader with two terminals
    job = lab.Job(tmp_path / "master", *flags)
    release = tmp_path / "release"  # until it exists, the ranks are slow: the job must not end before the killed rank is back
    nodes = Nodes(tmp_path, job.addr)

    def launch(name: str) -> None:
        words = [w.replace("127.0.0.1:8080", job.addr) for w in node[1:-1]]
        script = [str(HERE / "hold.py"), str(release), str(EXAMPLE / "train.py")]
        paths = [("train", "mnist/digits-0*"), ("test", "mnist/digits-test-*"), ("saved", "saved")]
        files = [f"--{option}={tmp_path / value}" for option, value in paths]
        nodes.launch(name, *words, *script, *files)

    try:
        launch("a")
        nodes.await_log("a", FIRST, 1)
        launch("b")
        nodes.await_log("a", FIRST, 2)
        nodes.await_log("b", FIRST, 1)
        lab.kill(nodes.programs("b")[0])
        nodes.await_log("a", FIRST, 3)
        nodes.await_log("b", FIRST, 2)
        release.touch()
        assert nodes.end() == {"a": 0, "b": 0}, nodes.logs()
        lines = re.findall(r"^(?:rank \d|test accuracy).*\n", (tmp_path / "a.log").read_text(), re.MULTILINE)
        lines += re.findall(r"^test accuracy.*\n", (tmp_path / "b.log").read_text(), re.MULTILINE)
        assert doctest.OutputChecker().check_output(output, "".join(lines), doctest.ELLIPSIS), nodes.logs()
        for name in ("a", "b"):
            log = (tmp_path / f"{name}.log").read_text()
            assert "Error waiting on exit barrier" not in log, log[-6000:]
        assert [(p["missing"], p["counted_twice"]) for p in job.verify()] == [(0, 0)] * 8
    finally:
        nodes.stop()
        job.stop()
