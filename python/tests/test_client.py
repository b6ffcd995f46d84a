"""The client with real masters: passes, faults, and the sentences of bad input."""

from __future__ import annotations

import contextlib
import copy as copy_module
import functools
import gc
import glob
import os
import pathlib
import pickle
import re
import resource
import signal
import socket
import subprocess
import sys
import sysconfig
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lab import Job, end, ends, kill, number_of, numbers, once_per_pass, stop

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


def test_chunks_of_a_task_are_requested_ahead(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j = numbers(tmp_path, 100), job("--chunks-per-task", "4")
    with tm.Client(j.addr) as client:
        client.report_dataset(data)
        for task in client.tasks():
            for i, record in enumerate(task):
                link = client._chunks._link
                assert link is not None
                ahead = tuple(c for c, _ in link._asked)
                assert ahead == task.work.chunks[i // 25 + 1 :][:1], number_of(record)
    j.verify()


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


def test_agent_that_is_killed_in_a_task_is_started_by_the_next_loop(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F547."""
    data, j = numbers(tmp_path, 400, shards=1), job("--chunks-per-task", "8")
    with tm.Client(j.addr) as client:
        client.report_dataset(data)
        for task in client.tasks():
            records = iter(task)
            next(records)
            kill(client.agent_pid)
            with pytest.raises(tm.errors.AgentLostError):
                list(records)
            break
        assert sum(len(list(task)) for task in client.tasks()) == 400
        assert client.session == 2
    j.verify()


def test_agent_that_is_killed_while_it_starts_is_started_again(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F566: at the first start, and after the end of an agent in the loop. An agent that always ends is an error."""
    data, j = numbers(tmp_path, 40), job()
    kills, killed = [3], list[int]()
    popen = subprocess.Popen

    def killing(command: list[str], **more: Any) -> Any:
        process = popen(command, **more)
        if "agent" in command and kills[0]:
            kills[0] -= 1
            killed.append(process.pid)
            end(process.pid)
        return process

    with pytest.MonkeyPatch.context() as m:
        m.setattr(subprocess, "Popen", killing)
        loader, seen = tm.Loader(data, decode=number_of, batch_size=10, addr=j.addr, timeout=240), Counter[int]()
        assert len(killed) == 3
        for i, batch in enumerate(loader):
            seen.update(batch.tolist())
            if i == 1:
                kills[0] = 2
                end(loader.client.agent_pid)
        assert len(killed) == 5
        assert loader.client.session == 2
        loader.close()
        assert set(seen) == set(range(40))
        j.verify()
        kills[0] = 100
        with pytest.raises(tm.errors.AgentError, match=r"agent: expected it to start, found 5 ends: .* ended by signal 9 at its start"):
            tm.Client(j.addr, timeout=240)


def test_close_after_the_end_of_the_own_master(tmp_path: pathlib.Path) -> None:
    """There is no master to which tasks could be reported: nothing waits for it, as after Ctrl-C."""
    data = numbers(tmp_path, 40)
    with tm.local() as master:
        loader = tm.Loader(data, decode=number_of, batch_size=10, addr=master.addr, timeout=240)
        for i, _ in enumerate(loader):
            if i == 3:
                break
    loader.close()
    assert loader.client._agent.process.returncode == -signal.SIGKILL


def test_agent_that_is_killed_before_a_dataset_is_named_is_started(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F555: by `report_dataset`, and by a loader."""
    data, j = numbers(tmp_path, 400, shards=1), job("--chunks-per-task", "8")
    with tm.Client(j.addr) as client:
        end(client.agent_pid)
        client.report_dataset(data)
        next(client.tasks())
        end(client.agent_pid)
        loader = tm.Loader(data, batch_size=10, client=client)
        assert sum(map(len, loader)) == 400
    j.verify()


def test_agent_that_is_killed_before_a_dataset_is_named_ends_the_session_of_a_member(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F555: a job of explicit commits begins again from the last step."""
    with tm.Client(job("--explicit-commit").addr) as client:
        end(client.agent_pid)
        with pytest.raises(tm.errors.RolledBackError, match="the session of this member was lost"):
            client.report_dataset(numbers(tmp_path, 10))


def test_agent_that_is_killed_before_a_task_fails_is_started_by_the_next_loop(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F555."""
    data, j = numbers(tmp_path, 400, shards=1), job("--chunks-per-task", "8")
    with tm.Client(j.addr) as client:
        client.report_dataset(data)
        task = next(client.tasks())
        end(client.agent_pid)
        client.fail(task, "bad record")
        assert sum(len(list(task)) for task in client.tasks()) == 400
        assert client.session == 2
    j.verify()


def test_loader_whose_agent_always_ends_raises(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F548: it does not start agents without end."""
    data, j, ends = numbers(tmp_path, 100), job(), 0
    loader = tm.Loader(data, batch_size=10, addr=j.addr)

    def again() -> None:
        nonlocal ends
        ends += 1
        assert ends <= 5
        kill(loader.client.agent_pid)

    loader.client._on_restart.append(again)
    kill(loader.client.agent_pid)
    with pytest.raises(tm.errors.AgentError, match="expected it to run, found 5 ends without a task between them"):
        next(iter(loader))
    loader.close()


def test_one_of_two_trainers_with_one_name_ends_with_an_error(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F569: each would begin a session that ends the session of the other, without end."""
    data, j = numbers(tmp_path, 1000), job("--chunks-per-task", "1", "--passes", "1000")
    script = f"import time, trainmaster as tm\nfor _ in tm.Loader({data!r}, decode=len, addr={j.addr!r}, timeout=240): time.sleep(0.02)"
    environment = {**os.environ, "TRAINMASTER_ID": "same"}
    first, second = (subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, env=environment) for _ in range(2))
    try:
        end = time.monotonic() + 240
        while first.poll() is None and second.poll() is None and time.monotonic() < end:
            time.sleep(0.05)  # there are two processes to wait for
        ended = first if first.poll() is not None else second
        assert ended.stderr is not None
        last = ended.stderr.read().splitlines()[-1]
        assert "InvalidError: trainer 'same': expected a name of its own, found another trainer with it, since 5 sessions in a row" in last
    finally:
        for trainer in (first, second):
            trainer.kill()
            trainer.wait()


def test_commit_needs_a_step_that_is_saved(job: StartJob) -> None:
    """Without it, the only member would wait for itself."""
    with tm.Client(job("--explicit-commit").addr) as client:
        client.rollback(client.last_step())
        with pytest.raises(tm.errors.InvalidError, match=r"commit: expected flushed\(1\) before it"):
            client.commit(1)


def test_sessions_that_end_are_not_ends_of_the_agent(job: StartJob) -> None:
    """F516: as in a rolling restart of parameter servers."""
    with tm.Client(job().addr) as client:
        for _ in range(7):
            client._restart()
        assert client.session == 8


def test_answer_without_a_task_is_no_progress(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F548: the ends of the agent of a group are counted as those of another loader."""
    j = job()
    with tm.Client(j.addr) as client:
        client._has_dataset = True  # another trainer will name it
        client._restarts = 3
        assert client._fetch_soon((), 1, 0.1) == []
        assert client._restarts == 3
        with tm.Client(j.addr, id="other") as other:
            other.report_dataset(numbers(tmp_path, 10))
        while not client._fetch_soon((), 1, 1.0):
            pass
        assert client._restarts == 0


def test_closed_client_reports_what_its_loader_has_finished(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F546."""
    data, j = numbers(tmp_path, 200, shards=1), job("--chunks-per-task", "1")
    client = tm.Client(j.addr)
    batches = iter(tm.Loader(data, decode=number_of, batch_size=25, client=client))
    seen = Counter[int]()
    loader = client._loader() if client._loader is not None else None
    assert loader is not None
    for _ in range(3):
        seen.update(next(batches).tolist())
    loader.done()
    client.close()
    with tm.Client(j.addr) as other:
        for task in other.tasks():
            seen.update(map(number_of, task))
    once_per_pass(seen, 200, 1)


def test_directory_of_killed_processes_is_removed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next trainer. A running trainer, or a fork of it, keeps its directory, and other files stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    others = ["trainmaster-agent-of-all-users", "trainmaster-agent-of_users"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / others[1] / "file").touch()
    script = "import sys, tempfile; tempfile.tempdir = sys.argv[1]; from trainmaster._agent import Directory; d = Directory()\n"
    script += "open(d.file, 'w'); print(d.path, flush=True); input()"
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


def test_stopped_agent_of_a_group_counts_as_lost(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F509: the loader of a group does not wait for its request."""
    monkeypatch.setattr("trainmaster.client._SLICE", 1.0)
    monkeypatch.setattr("trainmaster.client.STOPPED", 1.0)
    monkeypatch.setattr("trainmaster._agent._CLOSE_TIMEOUT", 1.0)
    j = job()
    with tm.Client(j.addr) as client:
        client.report_dataset(numbers(tmp_path, 10))
        os.kill(client.agent_pid, signal.SIGSTOP)
        with pytest.raises(tm.errors.AgentLostError, match="expected an answer to next within 2 s, found none: it is stopped"):
            while client._fetch_soon((), 1, 0.1) == []:
                pass
        client._restart()
        assert sum(len(task) for task in client.tasks()) == 10
    j.verify()


def test_missing_dataset_is_explained(
    job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The master of this process has no dataset, or another master has none yet."""
    for name in ("TRAINMASTER_ADDR", "TRAINMASTER_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)
    with tm.Client() as alone:
        with pytest.raises(tm.errors.InvalidError, match="paths: expected the dataset, found none, and no other process can name it"):
            next(alone.tasks())
        alone.report_dataset(numbers(tmp_path, 10))
        assert sum(len(task) for task in alone.tasks()) == 10
    monkeypatch.setattr("trainmaster.client._SLICE", 0.5)
    j = job()
    with tm.Client(j.addr) as client, tm.Client(j.addr) as other:

        def name_it() -> bool:
            if "the job has no dataset: name its files" in caplog.text:
                other.report_dataset(str(tmp_path / "numbers-*"))
            return False

        client._while_waiting = name_it
        assert sum(len(task) for task in client.tasks()) == 10
    j.verify()


def test_agent_accepts_again_when_it_has_descriptors(job: StartJob, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    data, j = numbers(tmp_path, 100), job("--chunks-per-task", "1")
    with tm.Client(j.addr) as client, contextlib.ExitStack() as open_sockets:
        client.report_dataset(data)
        before = resource.prlimit(client.agent_pid, resource.RLIMIT_NOFILE)
        resource.prlimit(client.agent_pid, resource.RLIMIT_NOFILE, (descriptors(client.agent_pid) + 4, before[1]))
        for _ in range(20):
            open_sockets.enter_context(socket.socket(socket.AF_UNIX)).connect(client._path)
        while "connection to the socket of the agent not accepted, trying again" not in capfd.readouterr().err:
            time.sleep(0.01)
        open_sockets.close()
        resource.prlimit(client.agent_pid, resource.RLIMIT_NOFILE, before)
        assert sum(len(list(task)) for task in client.tasks()) == 100
    j.verify()


@pytest.mark.parametrize("which", ["agent", "process"])
def test_lack_of_descriptors_fails_no_task(job: StartJob, tmp_path: pathlib.Path, which: str) -> None:
    """The script keeps records of more chunks than the agent, or this process, may open."""
    data, j = numbers(tmp_path, 400, per_chunk=5), job("--chunks-per-task", "20")
    with tm.Client(j.addr) as client:
        client.report_dataset(data)
        pid = client.agent_pid if which == "agent" else os.getpid()
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(pid) + 40, before[1]))
        kept: list[memoryview] = []
        try:
            with pytest.raises(tm.errors.ResourceError, match=r"allow more open files \(ulimit -n\)"):
                for task in client.tasks():
                    kept.extend(task)
            kept.clear()
            for task in client.tasks():  # the rest, and the task in hand again
                assert len(list(task)) == 100
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert j.verify()[0]["set_aside"] == 0
    assert "failed" not in j.log.read_text()


def descriptors(pid: int) -> int:
    """Number of open files of a process."""
    return len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))


def test_stopped_agent_counts_as_lost(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F509: by a loop, and by the end of a loader."""
    monkeypatch.setattr("trainmaster.client._SLICE", 1.0)
    monkeypatch.setattr("trainmaster.client.STOPPED", 5.0)
    monkeypatch.setattr("trainmaster._agent._CLOSE_TIMEOUT", 1.0)
    monkeypatch.setattr("trainmaster._link._PATIENCE", 2.0)
    data, j, seen = numbers(tmp_path, 100), job("--passes", "2", "--chunks-per-task", "1"), Counter[int]()
    loader = tm.Loader(data, decode=number_of, batch_size=25, addr=j.addr)
    for i, batch in enumerate(loader):
        seen.update(batch.tolist())
        if i == 1:
            os.kill(loader.client.agent_pid, signal.SIGSTOP)
        if i > 1 and loader.client.session > 1:
            break
    loader.done()
    os.kill(loader.client.agent_pid, signal.SIGSTOP)
    loader.close()
    for batch in tm.Loader(data, decode=number_of, batch_size=25, addr=j.addr):
        seen.update(batch.tolist())
    assert len(seen) == 100
    assert {p["missing"] for p in j.verify()} == {0}


def test_stopped_agent_counts_as_lost_after_the_timeout(job: StartJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """F509: also if it is shorter than the time after which the agent is asked whether it runs."""
    monkeypatch.setattr("trainmaster.client._SLICE", 1.0)
    monkeypatch.setattr("trainmaster._agent._CLOSE_TIMEOUT", 1.0)
    monkeypatch.setattr("trainmaster._link._PATIENCE", 1000.0)
    with tm.Client(job("--explicit-commit").addr, timeout=2) as client:
        stop(client.agent_pid)
        with pytest.raises(tm.errors.AgentLostError, match="expected an answer to last_step within 3 s, found none: it is stopped"):
            client.last_step()


def test_stopped_agent_that_owes_a_chunk_counts_as_lost(job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F509: the loop has tasks, and needs nothing but their records. A slow answer alone is no loss."""
    monkeypatch.setattr("trainmaster.client._SLICE", 1.0)
    monkeypatch.setattr("trainmaster._agent._CLOSE_TIMEOUT", 1.0)
    monkeypatch.setattr("trainmaster._link._PATIENCE", 1.0)
    data, j = numbers(tmp_path, 100), job("--chunks-per-task", "1")
    with tm.Client(j.addr) as client:
        client.report_dataset(data)
        tasks = client.tasks()
        task = next(tasks)
        pid = client.agent_pid
        stop(pid)
        timer = threading.Timer(1.5, os.kill, (pid, signal.SIGCONT))
        timer.start()
        assert len(list(task)) == len(task)
        timer.join()
        stop(pid)
        with pytest.raises(tm.errors.AgentLostError, match="expected an answer of the agent within 2 s, found none: it is stopped"):
            list(task)
        os.kill(pid, signal.SIGCONT)
    j.stop()


def test_bad_input_is_explained(job: StartJob, tmp_path: pathlib.Path) -> None:
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
        client.progress(np.int64(2), np.float32(0.5))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="expected at least one path"):
            client.report_dataset([])
        with pytest.raises(tm.Error, match="explicit-commit"):
            client.last_step()
        with pytest.raises(ValueError, match="n: expected a whole number of at least 0, found -1"):
            client.applied(next(client.tasks()), 1, -1)
        assert client.session == 1
        with pytest.raises(TypeError, match="error: expected an exception or a text, found 5"):
            client.fail(next(client.tasks()), 5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="task: expected a task"):
            client.fail(None, "x")  # type: ignore[arg-type]
        for bad, found in ((None, "a path, glob or URL, or a list of them, found None"), ([5], "a path, found 5"), (b"x", "a path, found b'x'")):
            with pytest.raises(TypeError, match=f"paths: expected {found}"):
                client.report_dataset(bad)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="paths: expected a path, found ''"):
            client.report_dataset("")
        with pytest.raises(tm.errors.InvalidError, match=r"another dataset was reported first: .*: a job has one dataset"):
            client.report_dataset(damaged(tmp_path / "other", data, 0))
        task = next(client.tasks())
    closed = "expected an open client, found a closed one"
    with pytest.raises(tm.errors.InvalidError, match=closed):
        client.report_dataset(data)
    with pytest.raises(tm.errors.InvalidError, match=closed):
        list(task)
    with pytest.raises(tm.errors.InvalidError, match=closed):
        client.fail(task, "x")
    found = f'master at {j.addr}: no such job here: expected "default", which this master serves, found "other": name its job'
    with pytest.raises(tm.errors.InvalidError, match=found):
        tm.Client(j.addr, job="other", timeout=120)


def test_program_that_cannot_run_is_explained(
    job: StartJob, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    j = job()
    with monkeypatch.context() as m, pytest.raises(tm.errors.AgentError, match="exit code 2 at the start: its message is above"):
        m.setenv("TRAINMASTER_CA_FILE", str(tmp_path / "none"))
        tm.Client(j.addr)
    assert "for --ca-file from the environment variable TRAINMASTER_CA_FILE: expected a PEM file: no such file or directory" in capfd.readouterr().err
    monkeypatch.setenv("TRAINMASTER_BIN", str(tmp_path / "none"))
    with pytest.raises(tm.Error, match="TRAINMASTER_BIN: expected a program, found"):
        tm.Client(j.addr)
    (tmp_path / "none").touch(0o600)
    with pytest.raises(tm.Error, match=r"TRAINMASTER_BIN: expected a program, found a file that is not executable, .*: chmod"):
        tm.Client(j.addr)
    monkeypatch.delenv("TRAINMASTER_BIN")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
    with pytest.raises(tm.Error, match=f"trainmaster: expected the program in {tmp_path}, found none: install the package with pip"):
        tm.Client(j.addr)


def damaged(path: pathlib.Path, data: str, at: int) -> str:
    """Make a file of a dataset with another byte, 0: the same bytes."""
    content = bytearray(pathlib.Path(sorted(glob.glob(data))[0]).read_bytes())
    content[at] ^= at > 0
    path.write_bytes(content)
    return str(path)


def test_refused_files_are_explained(job: StartJob, tmp_path: pathlib.Path) -> None:
    """F532: damaged files differ from arguments that name no files."""
    data, j = numbers(tmp_path, 100), job()
    (tmp_path / "empty").touch()
    with tm.Client(j.addr) as client:
        for path in (damaged(tmp_path / "damaged", data, 3), str(tmp_path / "empty")):
            with pytest.raises(tm.errors.DamagedError, match="byte 0: "):
                client.report_dataset(path)
        with pytest.raises(tm.errors.InvalidError, match="not a regular file but a directory"):
            client.report_dataset(tmp_path)
        with pytest.raises(tm.errors.InvalidError, match="outside of --data-roots"):
            client.report_dataset("s3://bucket/x")
        with pytest.raises(tm.errors.NotFoundError, match="none"):
            client.report_dataset(tmp_path / "none")
        client.report_dataset(data)


def test_bad_arguments_are_explained() -> None:
    addr = "127.0.0.1:1"
    with pytest.raises(TypeError, match="job: expected a name, found 5"):
        tm.Client(addr, job=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"job: expected a name of up to 128 letters, .* found 'a/b'"):
        tm.Client(addr, job="a/b")
    for name in ("a b\n", "x" * 129):
        with pytest.raises(ValueError, match=r"id: expected 1 to 128 letters, .* found"):
            tm.Client(addr, id=name)
    with pytest.raises(ValueError, match="addr, endpoints: expected one of them, found both"):
        tm.Client(addr, endpoints=addr)
    for bad_timeout in ("x", None, True):
        with pytest.raises(TypeError, match=f"timeout: expected a number of seconds, found {bad_timeout!r}"):
            tm.Client(addr, timeout=bad_timeout)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout: expected more than 0"):
        tm.Client(addr, timeout=0)
    for window in (0, 1, 65, True, "x"):
        for make in (tm.Client, functools.partial(tm.Loader, "data")):
            with pytest.raises(ValueError, match=f"window: expected a whole number from 2 to 64, found {window!r}"):
                make(addr=addr, window=window)  # type: ignore[arg-type]


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
    with pytest.raises(tm.errors.InvalidError, match=r"local: unknown flag: --nosuch$"):
        tm.local(1, "--nosuch")
    for passes in (None, -1, "2"):
        with pytest.raises(ValueError, match=f"passes: expected a whole number of at least 0, found {passes!r}"):
            tm.local(passes)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="flags: expected text, found 5"):
        tm.local(1, 5)  # type: ignore[arg-type]
    for addr in ("localhost", ":8080", 8080, "localhost:99999", "localhost:0", "http://127.0.0.1:8080", "::1:80"):
        with pytest.raises(ValueError, match=re.escape(f"addr: expected host:port, found {addr!r}")):
            tm.Client(addr)  # type: ignore[arg-type]
    for endpoints in (5, [5], "127.0.0.1", "a:1,b"):
        with pytest.raises((TypeError, ValueError), match="endpoints: expected host:port"):
            tm.Client(endpoints=endpoints)  # type: ignore[arg-type]
    monkeypatch.setenv("TRAINMASTER_JOB", "a/b")
    with pytest.raises(ValueError, match="TRAINMASTER_JOB: expected a name"):
        tm.Client("127.0.0.1:1")
    monkeypatch.delenv("TRAINMASTER_JOB")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: int("none"))
    with pytest.raises(ValueError, match="none"):
        tm.Client("127.0.0.1:1")
    assert not list(tmp_path.iterdir())
    for name in ("TRAINMASTER_ID", "TRAINMASTER_TRAINER"):
        monkeypatch.setenv(name, "a/b")
        with pytest.raises(ValueError, match=f"{name}: expected 1 to 128 letters, .* found 'a/b'"):
            tm.Client("127.0.0.1:1")
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRAINMASTER_ADDR", "localhost")
    with pytest.raises(ValueError, match="TRAINMASTER_ADDR: expected host:port, found 'localhost'"):
        tm.Client()
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(tm.errors.InvalidError, match="local: expected the only process of a job, found one with WORLD_SIZE two"):
        tm.local()


def test_no_master_is_a_timeout() -> None:
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match="expected an answer within 2 s, found none"):
        tm.Client("127.0.0.1:1", timeout=2)
    with pytest.raises(TimeoutError, match=r"etcd at http://127.0.0.1:1: expected the address of a master within 2 s, found none"):
        tm.Client(endpoints="http://127.0.0.1:1", timeout=2)
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


def test_job_of_this_process_alone_that_has_ended(tmp_path: pathlib.Path) -> None:
    """F542: a script loops over its data again, or a notebook runs a cell again."""
    data = numbers(tmp_path, 100)
    script = f"""
import trainmaster as tm
def train(**arguments):
    with tm.Client(timeout=20, **arguments) as client:
        if not client.over:
            client.report_dataset({data!r})
        print(sum(len(task) for task in client.tasks()), client.over)
train()
train()
with tm.local() as master:
    train(addr=master.addr)
    train(addr=master.addr)
train(addr=master.addr)
print([len(batch) for batch in tm.Loader({data!r}, addr=master.addr, timeout=1)])
with tm.local(1, "--listen", master.addr):
    train(addr=master.addr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240)
    late = "0 the job ended before this trainer joined"
    assert done.stdout.splitlines() == ["100 the job has ended"] * 3 + [late] * 2 + ["[]", "100 the job has ended"]


@pytest.mark.parametrize("gives_client", [False, True])
def test_client_that_is_not_closed_ends_its_session(job: StartJob, tmp_path: pathlib.Path, gives_client: bool) -> None:
    """F543: a loader of a function that has returned. Finished tasks that are not reported are reported then."""
    data, j, seen = numbers(tmp_path, 200), job("--chunks-per-task", "1"), []
    agents = []

    def train(batches: int) -> None:
        client = tm.Client(j.addr) if gives_client else None
        loader = tm.Loader(data, decode=number_of, batch_size=25, client=client, addr=None if gives_client else j.addr)
        agents.append((loader.client._agent.process, loader.client._path))
        for i, batch in enumerate(loader, 1):
            seen.extend(batch.tolist())
            if i == batches:
                loader.done()
                return

    gc.collect()  # of other tests
    descriptors = len(os.listdir("/proc/self/fd"))
    train(3)
    gc.collect()
    process, path = agents[0]
    assert process.wait(60) == 0
    assert not os.path.exists(os.path.dirname(path))
    assert len(os.listdir("/proc/self/fd")) == descriptors
    train(100)
    gc.collect()
    once_per_pass(Counter(seen), 200, 1)
    j.verify()


def test_newer_loop_over_tasks_ends_the_older_one(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j, seen = numbers(tmp_path, 100), job("--chunks-per-task", "1"), Counter[int]()
    with tm.Client(j.addr) as client:
        client.report_dataset(data)
        first = client.tasks()
        next(first)
        for task in client.tasks():
            seen.update(number_of(r) for r in task)
            break
        with pytest.raises(RuntimeError, match="tasks: expected one loop at a time, found a newer one"):
            next(first)
        seen.clear()
        for task in client.tasks():
            seen.update(number_of(r) for r in task)
    once_per_pass(seen, 100, 1)
    j.verify()


def test_client_is_not_copied(job: StartJob) -> None:
    with tm.Client(job().addr) as client:
        for copy in (copy_module.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="client: expected it in the process that made it, found pickle or copy"):
                copy(client)


def test_loss_that_is_no_number_is_refused(job: StartJob) -> None:
    with tm.Client(job().addr) as client, pytest.raises(TypeError, match="loss: expected a number, found 'x'"):
        client.progress(1, "x")  # type: ignore[arg-type]


def test_missing_module_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tm, "torch")
    for name in [n for n in sys.modules if n.startswith("trainmaster.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)  # as if there were none
    with pytest.raises(ModuleNotFoundError, match=r"trainmaster.torch: expected the module torch, found none: pip install 'trainmaster\[torch\]'"):
        tm.torch  # noqa: B018 it is imported


def test_program_that_ends_is_no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_BIN", "/bin/true")
    with pytest.raises(tm.Error, match="/bin/true: expected the program of trainmaster, found one that ends: correct or unset TRAINMASTER_BIN"):
        tm.Client("127.0.0.1:1")


def test_program_that_does_not_answer_is_no_agent(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o700)
    monkeypatch.setenv("TRAINMASTER_BIN", str(program))
    with pytest.raises(tm.errors.AgentError, match=f"{program}: expected the agent to answer within 2 s, found no answer: .* unset TRAINMASTER_BIN"):
        tm.Client("127.0.0.1:1", timeout=1)


def test_forked_process_does_not_loop(job: StartJob, tmp_path: pathlib.Path) -> None:
    data, j, seen = numbers(tmp_path, 100), job(), 0
    with tm.Client(j.addr) as client:
        loader = tm.Loader(data, decode=number_of, batch_size=10, client=client)
        for batch in loader:
            seen += len(batch)
            if seen == 30:
                fork = os.fork()
                if not fork:
                    try:
                        next(iter(loader))
                    except tm.errors.AgentError as e:
                        os._exit(7 if "loop: expected the process" in str(e) else 1)
                    finally:
                        os._exit(2)
                assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 7
        loader.close()
    assert seen == 100


def test_program_that_ends_is_no_local_master(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F531: its end is found, not a timeout."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o700)
    monkeypatch.setenv("TRAINMASTER_BIN", str(program))
    found = "found its end: correct or unset TRAINMASTER_BIN. Its messages:\nhello"
    with pytest.raises(tm.errors.AgentError, match=f"{program}: expected a master that serves, {found}"):
        tm.local()


def test_local_master_that_cannot_start_says_why() -> None:
    """F531: the program is right, and the machine is not."""
    script = "import resource, trainmaster as tm\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\ntm.local()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert "found its end: its messages:\nmaster: embedded etcd in " in done.stderr, done.stderr
    assert "file descriptor limit" in done.stderr, done.stderr


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
            works = client._fetch(finished, 1, wait=True)
            if works is not None:
                client._forget(works[-1].id)
            return None if works is None else [w.id for w in works]

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        first = fetch([])
        assert first is not None
        with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
            m.setattr(type(client._link), "_wait", interrupt)
            fetch([])
        while not client._link.tasks:  # the reply comes, with tasks: the window has room
            client._call("commands", evaluates=False)
        finished: list[int] | None = first
        while finished is not None:
            finished = fetch(finished)
    j.verify()


def test_finishes_are_reported_after_a_late_reply(job: StartJob, tmp_path: pathlib.Path) -> None:
    """Another request, as for commands, receives the reply to a request for tasks that is in progress. The next request has a finished task."""
    data, j = numbers(tmp_path, 100), job("--chunks-per-task", "1")
    with tm.Client(j.addr) as client:
        client.report_dataset(data)
        first = client._fetch([], 1, wait=True)
        assert first
        client._forget(first[-1].id)
        client._fetch_soon([], 1, limit=0)
        while not client._link.tasks:  # the reply comes, with tasks: the window has room
            client._call("commands", evaluates=False)
        finished, empty = [w.id for w in first], 0
        while (works := client._fetch_soon(finished, 1, limit=60)) is not None:
            empty += not works
            assert empty < 6, "a finished task is not reported"
            finished = [w.id for w in works]
            client._forget(max(finished, default=0))
    j.verify()


def test_local_master_ends_with_its_process(tmp_path: pathlib.Path) -> None:
    script = "import os, trainmaster as tm; print(tm.local(2)._guard.pid, flush=True); os.kill(os.getpid(), 9)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=240, env=environment)
    session = int(done.stdout)  # of the master, and of the shell that watches the process
    try:
        end = time.monotonic() + 60
        with pytest.raises(ProcessLookupError):
            while time.monotonic() < end:
                os.killpg(session, 0)
                time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session, signal.SIGKILL)
    assert not list(tmp_path.iterdir())
