"""torchrun with the backend trainmaster: real nodes, programs with gloo, and a master that is killed."""

from __future__ import annotations

import contextlib
import datetime
import gc
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any

import lab
import pytest

from trainmaster.local import ENDED_FILE

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a handler find no address, and restore the variables that it sets."""
    for name in ("TRAINMASTER_ADDR", "TRAINMASTER_ENDPOINTS", "TRAINMASTER_JOB", ENDED_FILE):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)


PROGRAM = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
here = pathlib.Path(sys.argv[1])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
for step in range(100000):
    t = torch.tensor([1.0 if (here / "stop").exists() else 0.0])
    dist.all_reduce(t)
    with open(here / "log", "a") as f:
        f.write(f"{os.environ['NODE']} {rank} {size} {time.time()}\\n")
    if t.item() > 0:
        break
    time.sleep(0.05)  # a step
dist.destroy_process_group()
"""


class Nodes:
    """Nodes of torchrun with one program each. Each step of a program writes a line to the log: node, rank, number of ranks, time."""

    def __init__(self, directory: pathlib.Path, addr: str, program: str = PROGRAM, modules: str = "") -> None:
        self.directory, self.addr, self.modules = directory, addr, modules
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        (directory / "program.py").write_text(program)
        # The entry point as an installed package has it.
        info = directory / "site" / "trainmaster-0.dist-info"
        info.mkdir(parents=True)
        project = (pathlib.Path(__file__).parent.parent / "pyproject.toml").read_text()
        entries = re.search(r'\[project\.entry-points\."torchrun\.handlers"\]\n((?:.+\n)+)', project)
        assert entries is not None
        (info / "entry_points.txt").write_text("[torchrun.handlers]\n" + entries[1].replace('"', ""))
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trainmaster\nVersion: 0\n")

    def start(self, node: str, nnodes: str = "1:3") -> None:
        """Start a node with the program."""
        options = [f"--nnodes={nnodes}", "--nproc-per-node=1", "--rdzv-backend=trainmaster", f"--rdzv-endpoint={self.addr}", "--max-restarts=100"]
        self.launch(node, *options, "--monitor-interval=0.1", str(self.directory / "program.py"), str(self.directory))

    def launch(self, node: str, *arguments: str) -> None:
        """Start torchrun with arguments as a node."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TRAINMASTER_") or k == "TRAINMASTER_BIN"}
        environment["PYTHONPATH"] = f"{self.directory / 'site'}:{environment['PYTHONPATH']}:{self.modules}"
        environment |= {"NODE": node, "TRAINMASTER_ID": node, "OMP_NUM_THREADS": "1", "LOGLEVEL": "INFO", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, "-m", "torch.distributed.run", *arguments]
        with (self.directory / f"{node}.log").open("wb") as out:
            self.nodes[node] = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)

    def kill(self, node: str) -> None:
        """Kill a node with its program, which has a session of its own."""
        programs = self.programs(node)
        os.killpg(self.nodes[node].pid, signal.SIGKILL)
        for program in programs:
            with contextlib.suppress(ProcessLookupError):  # it can end with its node
                lab.kill(program)
        self.nodes.pop(node).wait()

    def programs(self, node: str) -> list[int]:
        """Process ids of the programs of a node."""
        pid = self.nodes[node].pid
        found = []
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError):  # it has ended
                if pathlib.Path(f"/proc/{child}/environ").read_bytes().find(b"LOCAL_RANK=") >= 0:
                    found.append(int(child))
        return found

    def position(self) -> int:
        """Return the end of the log of the steps."""
        log = self.directory / "log"
        return log.stat().st_size if log.exists() else 0

    def await_steps(self, *names: str, steps: int = 5, begin: int | None = None) -> float:
        """Wait for steps of exactly these nodes from now on, or from a position on, and return the time of the first."""
        log = self.directory / "log"
        begin = self.position() if begin is None else begin
        end = time.monotonic() + 400
        while time.monotonic() < end:
            time.sleep(0.05)  # the log is a file: there is nothing to wait on
            lines = [line.split() for line in log.read_text()[begin:].splitlines()] if log.exists() else []
            lines = [line for line in lines if len(line) == 4 and int(line[2]) == len(names)]
            if all(sum(line[0] == name for line in lines) >= steps for name in names):
                assert {line[0] for line in lines} == set(names), lines
                return float(lines[0][3])
        raise AssertionError(f"expected steps of {names}, found {log.read_text()[begin:][-500:] if log.exists() else 'none'}\n{self.logs()}")

    def await_log(self, node: str, words: str, times: int) -> None:
        """Wait for words in the log of a node."""
        lab.await_text(self.directory / f"{node}.log", words, times)

    def logs(self) -> str:
        """The end of each log."""
        return "\n".join(f"{p.name}: {p.read_text(errors='replace')[-2000:]}" for p in sorted(self.directory.glob("?.log")))

    def end(self) -> dict[str, int]:
        """Let the programs end, and return the exit codes of the nodes."""
        (self.directory / "stop").touch()
        return {name: node.wait(240) for name, node in self.nodes.items()}

    def stop(self) -> None:
        """Kill what is left."""
        for node in list(self.nodes):
            if self.nodes[node].poll() is None:
                self.kill(node)


@contextlib.contextmanager
def ring(directory: pathlib.Path, size: str) -> Iterator[tuple[lab.Job, Nodes]]:
    """A master with a ring, and nodes of it."""
    job = lab.Job(directory / "master", "--ring", size)
    nodes = Nodes(directory, job.addr)
    try:
        yield job, nodes
    finally:
        nodes.stop()
        job.stop()


def test_address_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    import trainmaster as tm
    from trainmaster.torch import elastic

    with pytest.raises(tm.errors.InvalidError, match=r"rdzv-endpoint: expected host:port of the master, found none"):
        elastic.Handler(RendezvousParameters("trainmaster", "", "none", 1, 1))


def test_unknown_options_are_refused() -> None:
    """A misspelled option would have its default. torchrun adds `timeout` itself."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    import trainmaster as tm
    from trainmaster.torch import elastic

    with pytest.raises(tm.errors.InvalidError, match=r"--rdzv-conf: expected id and join_timeout, found jion_timeout, read_timeout"):
        elastic.Handler(RendezvousParameters("trainmaster", "127.0.0.1:1", "none", 1, 1, read_timeout="5", jion_timeout="5", timeout=900))


SIGNALED = """
import sys
from torch.distributed.elastic.rendezvous import RendezvousParameters
from trainmaster import _agent
from trainmaster.torch import elastic
_agent._CLOSE_TIMEOUT = 1000.0
node = elastic.Handler(RendezvousParameters("trainmaster", sys.argv[1], "none", 1, 1, id="a"))
node.next_rendezvous()
"""


def test_node_that_a_signal_ends_leaves_immediately(tmp_path: pathlib.Path) -> None:
    """F570: torchrun calls no method of its rendezvous then. Its exit does not wait for an agent that waits for this exit."""
    with ring(tmp_path, "1") as (job, _):
        subprocess.run([sys.executable, "-c", SIGNALED, job.addr], check=True, timeout=120)
        job.await_log("member removed from the ring", 1)


def test_programs_have_the_address_of_the_master() -> None:
    """F487: torchrun gives its environment to the programs. Without an address, the loader of each program would start a master."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from trainmaster.torch import elastic

    def variables(**present: str) -> tuple[str | None, ...]:
        with pytest.MonkeyPatch.context() as m:
            for name in (names := ("TRAINMASTER_ADDR", "TRAINMASTER_ENDPOINTS", "TRAINMASTER_JOB")):
                m.setenv(name, "")  # so that it is restored
                m.delenv(name)
            for name, value in present.items():
                m.setenv(name, value)
            elastic.Handler(RendezvousParameters("trainmaster", "127.0.0.1:1", "a-job", 1, 1))  # it joins later
            return tuple(os.environ.get(name) for name in names)

    assert variables() == ("127.0.0.1:1", None, "a-job")
    assert variables(TRAINMASTER_ENDPOINTS="etcd:2379", TRAINMASTER_JOB="b") == (None, "etcd:2379", "b")


def test_nodes_come_and_go_and_the_master_is_killed(tmp_path: pathlib.Path) -> None:
    """F434: 3 nodes, one is killed, the master is killed and started again, a node joins. All end with 0."""
    with ring(tmp_path, "1:3") as (job, nodes):
        for name in "abc":
            nodes.start(name)
        nodes.await_steps("a", "b", "c")
        nodes.kill("a")  # the node of rank 0 can be it: its store is gone
        nodes.await_steps("b", "c")
        job.kill()
        nodes.await_steps("b", "c")  # without a master
        job.start()
        nodes.start("d")
        nodes.await_steps("b", "c", "d")
        assert nodes.end() == {"b": 0, "c": 0, "d": 0}, nodes.logs()
        assert job.process.wait(240) == 0, job.log.read_text()


def test_node_that_is_removed_in_order_leaves(tmp_path: pathlib.Path) -> None:
    """F434: SIGTERM, as Kubernetes and Slurm send it, ends a node. Its member leaves the ring, and the rendezvous stays open for the others."""
    with ring(tmp_path, "1:3") as (job, nodes):
        for name in "abc":
            nodes.start(name)
        nodes.await_steps("a", "b", "c")
        nodes.nodes["a"].terminate()
        assert nodes.nodes.pop("a").wait(240) != 0
        nodes.await_steps("b", "c")
        job.await_log("its process has ended", 1)
        nodes.start("a")
        nodes.await_steps("a", "b", "c")
        assert nodes.end() == {"a": 0, "b": 0, "c": 0}, nodes.logs()
        assert job.process.wait(240) == 0, job.log.read_text()


def test_generation_is_replaced_while_a_node_stops_its_program(tmp_path: pathlib.Path) -> None:
    """F485: a node joins, and is killed before another node has stopped its program. The third node waits in a generation that stays incomplete."""
    with ring(tmp_path, "1:3") as (job, nodes):
        nodes.start("b")
        nodes.await_steps("b")
        nodes.start("a")
        nodes.await_steps("a", "b")
        lab.stop(nodes.nodes["a"].pid)  # torchrun: its agent stays a member
        nodes.start("c")
        job.await_log("ring formed", 3)
        nodes.await_log("b", "generation 3: waiting for a", 1)
        nodes.kill("c")
        job.await_log("ring formed", 4)
        os.kill(nodes.nodes["a"].pid, signal.SIGCONT)
        nodes.await_steps("a", "b")
        assert nodes.end() == {"a": 0, "b": 0}, nodes.logs()


def test_failed_program_starts_again_on_all_nodes(tmp_path: pathlib.Path) -> None:
    """F435: the program of one node is killed. torchrun starts it again, and the other node starts over, too."""
    with ring(tmp_path, "2") as (_, nodes):
        for name in "ab":
            nodes.start(name, "2")
        nodes.await_steps("a", "b")
        lab.kill(nodes.programs("b")[0])
        nodes.await_steps("a", "b")
        assert nodes.end() == {"a": 0, "b": 0}, nodes.logs()


def test_node_that_was_away_for_several_generations_takes_part_in_the_next(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the first generation in hand while another node comes and goes. The values of this generation are removed."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from trainmaster.torch import elastic

    job = lab.Job(tmp_path / "master", "--ring", "1:2")
    a, b = (elastic.Handler(RendezvousParameters("trainmaster", job.addr, "none", 1, 2, id=name)) for name in "ab")
    check = elastic.Handler._check_nodes

    def late(self: elastic.Handler, state: dict[str, Any]) -> None:
        check(self, state)
        if self is not a or state["generation"] > 1:
            return
        end = time.monotonic() + 240
        for generation in range(2, 8):
            if generation % 2 == 0:
                b._ring()  # it joins
            elif b._agent is not None:
                b._agent.close()  # it leaves
                b._agent = None
            while a._ring()["generation"] < generation and time.monotonic() < end:
                time.sleep(0.05)

    monkeypatch.setattr(elastic.Handler, "_check_nodes", late)
    try:
        met = a.next_rendezvous()
        assert (met.rank, met.world_size, a._generation) == (0, 1, 7)
        for setting in ("trainmaster._link._PATIENCE", "trainmaster._agent._CLOSE_TIMEOUT"):
            monkeypatch.setattr(setting, 1.0)
        assert a._agent is not None
        stopped = a._agent.process.pid
        lab.stop(stopped)
        a._ring()  # F509: by another agent
        assert a._agent.process.pid != stopped
        assert a.shutdown()
        monkeypatch.setattr(elastic, "started", None)  # another one would wait for a master that has ended
        assert a.shutdown()
        assert a.is_closed()
        assert a.num_nodes_waiting() == 0
    finally:
        for handler in (a, b):
            if handler._agent is not None:
                handler._agent.close()
        job.stop()


def test_wait_for_a_ring_keeps_the_agent(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F526: a request that waits longer than the client waits before it asks whether the agent runs."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from trainmaster.torch import elastic

    monkeypatch.setattr("trainmaster._link._PATIENCE", 0.5)
    job = lab.Job(tmp_path / "master", "--ring", "2:2")
    node = elastic.Handler(RendezvousParameters("trainmaster", job.addr, "none", 2, 2, id="a"))
    try:
        update = node._ring()["update"]
        agent = node._agent
        node._ring(update, wait=3)
        assert node._agent is agent
    finally:
        if node._agent is not None:
            node._agent.close()
        job.stop()


def test_program_that_starts_after_the_end_of_the_job_ends(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F571: the master has ended, too, before this program could join. torchrun knows why the ring is closed."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    import trainmaster as tm
    from trainmaster.client import LATE
    from trainmaster.torch import elastic

    monkeypatch.setattr("trainmaster.client._SLICE", 1.0)
    job = lab.Job(tmp_path / "master", "--ring", "1")
    node = elastic.Handler(RendezvousParameters("trainmaster", job.addr, "none", 1, 1, id="a"))
    try:
        node.next_rendezvous()
        assert node.num_nodes_waiting() == 0
        data = lab.numbers(tmp_path, 20)
        with tm.Client(job.addr) as client:
            client.report_dataset(data)
            assert sum(len(task) for task in client.tasks()) == 20
        job.process.wait(240)
        end = time.monotonic() + 240
        while not pathlib.Path(os.environ[ENDED_FILE]).exists() and time.monotonic() < end:
            assert node.num_nodes_waiting() == 0
            time.sleep(0.05)  # the interval of torchrun
        with tm.Client(timeout=60) as late:
            assert late.over == LATE
            assert list(late.tasks()) == []
    finally:
        elastic._at_exit(weakref.ref(node))
        node._remove()
        job.stop()
    assert not pathlib.Path(os.environ[ENDED_FILE]).parent.exists()


def test_node_without_a_master_ends_at_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.api import RendezvousTimeoutError

    from trainmaster.torch import elastic

    node = elastic.Handler(RendezvousParameters("trainmaster", f"127.0.0.1:{lab.free_port()}", "none", 1, 1, join_timeout="1"))
    with pytest.raises(RendezvousTimeoutError, match=r"expected an answer within 1 s, found none: check the address"):
        node.next_rendezvous()
    assert node._agent is None
    monkeypatch.setattr(elastic, "started", None)  # there is nothing to close
    assert node.shutdown()


def test_store_of_a_generation_outlives_the_master(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun calls a PrefixStore, and its keys are none of those with which the nodes meet."""
    import torch.distributed as dist
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from trainmaster.torch import elastic

    job = lab.Job(tmp_path / "master", "--ring", "1:1")
    node = elastic.Handler(RendezvousParameters("trainmaster", job.addr, "none", 1, 1, id="a"))
    try:
        store = node.next_rendezvous().store
        gc.collect()  # only torchrun has the store
        assert isinstance(store, dist.PrefixStore)
        assert isinstance(store.underlying_store, elastic.MemberStore)
        assert not store.check(["here/0"])
        store.set("a", "1")
        job.kill()
        job.start()
        assert store.get("a") == b"1"
        assert store.underlying_store.get("torchrun/a") == b"1"
        assert (store.add("n", 5), store.add("n", -2)) == (5, 3)
        assert store.compare_set("a", "0", "2") == b"1"
        assert store.compare_set("a", "1", "2") == b"2"
        store.set("b", "x")
        store.set("c", "y")
        assert (store.get("b"), store.get("c")) == (b"x", b"y")
        assert store.check(["a", "b"])
        assert store.delete_key("a")
        assert not store.check(["a"])
        with pytest.raises(Exception, match=r"values torchrun/a: expected them within 1 s from the other nodes, found none"):
            store.wait(["a"], datetime.timedelta(seconds=1))
        store.set_timeout(datetime.timedelta(seconds=2))
        with pytest.raises(Exception, match=r"expected them within 2 s"):
            store.get("a")
    finally:
        node.shutdown()
        job.stop()


def test_number_of_nodes_must_agree(tmp_path: pathlib.Path) -> None:
    """--nnodes and --ring differ: the message names both, also if the first generation has an allowed size."""
    with ring(tmp_path, "1:3") as (_, nodes):
        nodes.start("a", "1:2")
        assert nodes.nodes["a"].wait(240) != 0
        assert "--nnodes: expected 1:3 as --ring of the master has, found 1:2: change one of them" in nodes.logs()
