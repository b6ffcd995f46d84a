"""The client with real masters: passes, faults, and the sentences of bad input."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import sysconfig
import textwrap
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from lab import Job, ends, kill, number_of, numbers, once_per_pass

import trainmaster as tm
from trainmaster._agent import Directory

StartJob = Callable[..., Job]


def test_client_walks_all_passes(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j, seen = numbers(tmp_path, 500), job("--passes", "2", "--chunks-per-task", "2"), Counter[int]()
    with tm.Client(j.addr) as client:
        client.report_dataset(data)
        for task in client.tasks():
            before = sum(seen.values())
            for record in task:
                assert isinstance(record, memoryview)
                seen[number_of(record)] += 1
            assert sum(seen.values()) - before == len(task)
        assert client.over
    once_per_pass(seen, 500, 2)
    assert [(p["missing"], p["counted_twice"]) for p in j.verify()] == [(0, 0), (0, 0)]


def test_failed_task_is_dispatched_again_and_set_aside(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 100), job("--chunks-per-task", "1", "--task-max-failures", "2")
    fails = Counter[int]()
    with tm.Client(j.addr) as client:
        client.report_dataset([data])
        for task in client.tasks():
            if any(number_of(r) == 7 for r in task):
                fails[task.index] += 1
                client.fail(task, ValueError("no good " + "x" * 1000))
    assert list(fails.values()) == [3]
    assert "no good xxx" in j.log.read_text()
    j.stop()


def test_loop_that_was_left_gets_its_task_again(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j, seen = numbers(tmp_path, 100), job("--chunks-per-task", "1"), Counter[int]()
    with tm.Client(j.addr) as client:
        client.report_dataset(data)
        for task in client.tasks():
            first = task.index
            break
        for task in client.tasks():
            if not seen:
                assert task.index == first
            seen.update(number_of(r) for r in task)
    once_per_pass(seen, 100, 1)
    j.verify()


def test_agent_that_is_killed_is_started_again(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j, kept = numbers(tmp_path, 200), job("--chunks-per-task", "1"), []
    with tm.Client(j.addr, id="a") as client:
        client.report_dataset(data)
        killed = 0
        for n, task in enumerate(client.tasks()):
            kept.append((list(task), task))
            if n in (2, 5):
                kill(client.agent_pid)
                killed += 1
        assert client.session == 1 + killed
        for records, task in kept:  # the memory of an agent that was killed stays valid
            assert len([number_of(r) for r in records]) == len(task)
    j.verify()


def test_directory_of_killed_processes_is_removed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next trainer. A running trainer, or a fork of it, keeps its directory, and other files stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    others = ["trainmaster-agent-of-all-users", "trainmaster-agent-of_users"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / others[1] / "file").touch()
    script = "import sys, tempfile; tempfile.tempdir = sys.argv[1]; from trainmaster._agent import Directory; d = Directory()\n"
    script += "open(d.socket, 'w'); print(d.path, flush=True); input()"
    command = [sys.executable, "-c", script, str(tmp_path)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in "ab"]
    killed, running = (pathlib.Path(p.stdout.readline().strip()) for p in processes if p.stdout is not None)
    kill(processes[0].pid)
    processes[0].wait()
    assert killed.exists()
    directory = Directory()
    assert not killed.exists()
    assert running.exists()
    assert {p.name for p in tmp_path.iterdir()} == {running.name, pathlib.Path(directory.path).name, *others}
    directory.remove()
    directory.remove()
    assert not os.path.exists(directory.path)
    kill(processes[1].pid)
    processes[1].wait()


def test_killed_master_costs_no_record(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j, seen = numbers(tmp_path, 400), job("--chunks-per-task", "1"), Counter[int]()
    with tm.Client(j.addr) as client:
        client.report_dataset(data)
        for n, task in enumerate(client.tasks()):
            seen.update(number_of(r) for r in task)
            if n == 4:
                j.kill()
                j.start()
    once_per_pass(seen, 400, 1)
    j.verify()


def test_agent_ends_with_a_killed_trainer(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 200), job("--chunks-per-task", "1", "--session-ttl", "10m")
    script = tmp_path / "trainer.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, time
            import trainmaster as tm
            client = tm.Client({j.addr!r}, id="victim")
            client.report_dataset({data!r})
            for task in client.tasks():
                if os.fork() == 0: time.sleep(600); os._exit(0)  # it keeps the sockets open
                print("agent", client.agent_pid, flush=True)
                time.sleep(600)
            """
        )
    )
    victim = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert victim.stdout
    agent = int(victim.stdout.readline().split()[1])
    try:
        with tm.Client(j.addr, id="other") as client:
            begun = time.monotonic()
            victim.kill()
            seen = Counter[int]()
            for task in client.tasks():
                seen.update(number_of(r) for r in task)
            assert time.monotonic() - begun < 300  # much less than the TTL of its session
        once_per_pass(seen, 200, 1)
        ends(agent)  # after its session
        j.verify()
    finally:
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait()


def test_session_outlives_a_held_gil(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 100), job("--chunks-per-task", "1", "--session-ttl", "4s")
    script = f"""
import ctypes, trainmaster as tm
with tm.Client({j.addr!r}) as client:
    client.report_dataset({data!r})
    for n, task in enumerate(client.tasks()):
        list(task)
        if n == 1: ctypes.PyDLL(None).sleep(11)
    print("session", client.session)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout == "session 1\n"
    j.verify()


def test_bad_input_is_explained(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, j = numbers(tmp_path, 100), job()
    with tm.Client(j.addr, id="one") as client:
        client.report_dataset(data)
        with pytest.raises(tm.errors.InvalidError, match="expected a client of its own, found an open client"):
            tm.Client(j.addr, id="one")
        with pytest.raises(tm.errors.NotFoundError, match="the glob matches no file"):
            client.report_dataset(str(tmp_path / "none-*"))
        with pytest.raises(tm.errors.InvalidError, match="report: expected a request of at most 1048576 bytes, found"):
            client.report_dataset(["/" + "x" * 99] * 12_000)
        with pytest.raises(ValueError, match=r"records: expected a whole number of at least 0, found 2\.5"):
            client.progress(2.5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="n: expected a whole number of at least 0, found -1"):
            client.applied(1, 1, -1)
        client.progress(np.int64(2), np.float32(0.5))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="expected at least one path"):
            client.report_dataset([])
        with pytest.raises(tm.Error, match="explicit-commit"):
            client.last_step()
        assert client.session == 1
    with pytest.raises(tm.errors.InvalidError, match="expected an open client, found a closed one"):
        client.report_dataset(data)
    with pytest.raises(tm.errors.InvalidError, match="other"):
        tm.Client(j.addr, job="other", timeout=120)
    with pytest.raises(TypeError, match="job: expected a name, found 5"):
        tm.Client(j.addr, job=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout: expected more than 0"):
        tm.Client(j.addr, timeout=0)
    with pytest.raises(ValueError, match="window: expected a whole number from 1 to 64, found 65"):
        tm.Client(j.addr, window=65)
    monkeypatch.setenv("TRAINMASTER_BIN", str(tmp_path / "none"))
    with pytest.raises(tm.Error, match="TRAINMASTER_BIN: expected a program, found"):
        tm.Client(j.addr)
    monkeypatch.delenv("TRAINMASTER_BIN")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
    with pytest.raises(tm.Error, match=f"trainmaster: expected the program in {tmp_path}, found none: install the package with pip"):
        tm.Client(j.addr)


def test_collected_client_leaves_its_name(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 100), job("--chunks-per-task", "1")
    loader: tm.Loader | None = tm.Loader(data, batch_size=10, client=tm.Client(j.addr, id="one"))
    del loader
    with tm.Client(j.addr, id="one") as client:
        assert sum(len(task) for task in client.tasks()) == 100
    j.verify()


def test_errors_outside_of_a_job(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(tm.errors.NotFoundError, match="missing: expected files with this name, found none"):
        list(tm.read_records(tmp_path / "missing"))
    with pytest.raises(ValueError, match="timeout: expected more than 0 seconds, found nan"):
        tm.Client("127.0.0.1:1", timeout=float("nan"))
    with pytest.raises(tm.errors.AgentError, match="unknown flag: --nosuch"):
        tm.local(1, "--nosuch")
    for addr in ("localhost", ":8080", 8080):
        with pytest.raises(tm.errors.InvalidError, match=f"addr: expected host:port, found {addr!r}"):
            tm.Client(addr)  # type: ignore[arg-type]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: int("none"))
    with pytest.raises(ValueError, match="none"):
        tm.Client("127.0.0.1:1")
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("TRAINMASTER_ADDR", "localhost")
    with pytest.raises(tm.errors.InvalidError, match="TRAINMASTER_ADDR: expected host:port, found 'localhost'"):
        tm.Client()
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(tm.errors.InvalidError, match="local: expected the only process of a job, found one with WORLD_SIZE two"):
        tm.local()


def test_no_master_is_a_timeout() -> None:
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match="expected an answer within 2 s, found none"):
        tm.Client("127.0.0.1:1", timeout=2)
    assert time.monotonic() - begun < 120  # less than the default


def test_another_version_is_refused(job: StartJob, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainmaster import _agent

    j = job()
    monkeypatch.setattr(_agent, "MASTER", "v0.0.0-of-another-time")
    with pytest.raises(tm.Error, match=r"expected version v0\.0\.0-of-another-time, as this package has, found"):
        tm.Client(j.addr)


def test_local_master(tmp_path: pathlib.Path) -> None:
    data = numbers(tmp_path, 100)
    script = f"""
import trainmaster as tm
with tm.Client() as client:
    client.report_dataset({data!r})
    print(sum(len(task) for task in client.tasks()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout == "100\n"
    assert "no TRAINMASTER_ADDR is set: started a master for this process alone" in done.stderr
    for name, value in (("WORLD_SIZE", "3"), ("KUBERNETES_SERVICE_HOST", "10.0.0.1")):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=240, env={**os.environ, name: value}
        )
        assert done.returncode != 0
        assert "TRAINMASTER_ADDR: expected the address of a master, found none" in done.stderr


def test_local_master_ends_although_a_fork_has_its_pipe() -> None:
    script = """
import os, signal, trainmaster as tm
with tm.local() as master:
    fork = os.fork()
    if not fork:
        signal.pause()
os.kill(fork, 9)
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout == "ended\n"


def test_finishes_are_reported_after_an_interrupt(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes in a request for tasks, and another request, as a push of gradients, receives their reply."""
    data, j = numbers(tmp_path, 100), job("--chunks-per-task", "1")
    with tm.Client(j.addr) as client:
        client.report_dataset(data)

        def fetch(finished: list[int]) -> list[int] | None:
            works = client.fetch(finished, 1, wait=True)
            if works is not None:
                client.forget(works[-1].id)
            return None if works is None else [w.id for w in works]

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        first = fetch([])
        assert first is not None
        with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
            m.setattr(type(client.link), "_wait", interrupt)
            fetch([])
        while not client.link.tasks:  # the reply comes, with tasks: the window has room
            client.call("elect")
        finished: list[int] | None = first
        while finished is not None:
            finished = fetch(finished)
    j.verify()


def test_finishes_are_reported_after_a_late_reply(job: StartJob, tmp_path: pathlib.Path) -> None:
    """Another request, as for commands, receives the reply to a request for tasks that is in progress. The next request has a finished task."""
    data, j = numbers(tmp_path, 100), job("--chunks-per-task", "1")
    with tm.Client(j.addr) as client:
        client.report_dataset(data)
        first = client.fetch([], 1, wait=True)
        assert first
        client.forget(first[-1].id)
        client.fetch_soon([], 1, limit=0)
        while not client.link.tasks:  # the reply comes, with tasks: the window has room
            client.call("elect")
        finished, empty = [w.id for w in first], 0
        while (works := client.fetch_soon(finished, 1, limit=60)) is not None:
            empty += not works
            assert empty < 6, "a finished task is not reported"
            finished = [w.id for w in works]
            client.forget(max(finished, default=0))
    j.verify()


def test_local_master_ends_with_its_process(tmp_path: pathlib.Path) -> None:
    script = "import os, trainmaster as tm; print(tm.local(2)._guard.pid, flush=True); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=240)
    ends(int(done.stdout))
