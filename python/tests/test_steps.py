"""Tasks of an asynchronous job finish with the step that has their records: no record is lost or twice in the parameters."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import pathlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from lab import MASTER, Servers, end, number_of, numbers, refuses, stop

import trainmaster as tm

RECORDS = 16


class Join:
    """Makes clients of a job, which end with it."""

    def __init__(self, endpoints: str, stack: contextlib.ExitStack, server: int) -> None:
        self.endpoints, self._stack, self.server = endpoints, stack, server

    def __call__(self) -> tm.Client:
        return self._stack.enter_context(tm.Client(endpoints=self.endpoints, timeout=240))


@contextlib.contextmanager
def trainers(directory: pathlib.Path, *flags: str) -> Iterator[Join]:
    """A job with a parameter server."""
    with contextlib.ExitStack() as stack:
        servers = Servers(directory, stack, "--ps", "1", "--chunks-per-task", "1", *flags)
        server = servers.serve()
        yield Join(servers.etcd, stack, server.pid)


class Counts:
    """A model whose weights are the numbers of times that each record is in the parameters: the gradient of a record is -1, and the rate 1."""

    def __init__(self, client: tm.Client, **settings: Any) -> None:
        self.model = torch.nn.Linear(RECORDS, 1, bias=False)
        torch.nn.init.zeros_(self.model.weight)
        self.optimizer = tm.torch.ParameterServerOptimizer(self.model, "sgd", lr=1.0, client=client, **settings)
        self.optimizer.zero_grad()

    def add(self, batch: np.ndarray[Any, Any] | list[int]) -> None:
        """Compute the gradient of a batch, and add it to those before."""
        (-self.model.weight[0, list(map(int, batch))].sum()).backward()

    def step(self, records: int | None = None) -> None:
        """Make a step."""
        self.optimizer.step(records=records)
        self.optimizer.zero_grad()

    def pulled(self) -> list[float]:
        """Return how often the parameters have each record."""
        assert self.optimizer.pull()
        return [round(float(n), 4) for n in self.model.weight[0]]


def loader_of(data: str, client: tm.Client, batch_size: int = 1) -> tm.Loader:
    return tm.Loader(data, decode=number_of, batch_size=batch_size, client=client)


def use_three(counts: Counts, loader: tm.Loader) -> None:
    """Use three batches without a step, and close the loader."""
    for _, batch in zip(range(3), loader):
        counts.add(batch)
        loader.done()
    loader.close()


def source(how: str, data: str, client: tm.Client) -> Iterator[list[int]]:
    """Iterate over the numbers of the records of each task, by a loader or by `tasks()`."""
    client.report_dataset(data)
    if how == "loader":
        return (batch.tolist() for batch in tm.Loader(decode=number_of, batch_size=1, client=client))
    return ([number_of(r) for r in task] for task in client.tasks())


def drain(endpoints: str, name: str) -> None:
    """Let an operator drain a trainer."""
    subprocess.run([MASTER, "drain", name, "--endpoints", endpoints], check=True, stdout=subprocess.DEVNULL)


def train_the_rest(data: str, client: tm.Client) -> list[float]:
    """Train to the end of the job, with a step for each batch."""
    counts, loader = Counts(client), loader_of(data, client)
    for batch in loader:
        counts.add(batch)
        counts.step()
    assert client.over == "the job has ended"
    return counts.pulled()


@pytest.mark.parametrize("how", ["stop", "SIGTERM"])
@pytest.mark.parametrize("after", ["nothing", "a step"])
def test_stopped_loop_finishes_only_tasks_of_a_step(tmp_path: pathlib.Path, how: str, after: str) -> None:
    """F518: a step for each 4 batches. The loop ends with the third one. A step after the loop has all three."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=1)
    with trainers(tmp_path) as join:
        with join() as first:
            counts, loader = Counts(first), loader_of(data, first)
            for i, batch in enumerate(loader, 1):
                counts.add(batch)
                if i == 3 and how == "stop":
                    loader.stop()
                    assert loader.is_last
                elif i == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
                if i % 4 == 0:
                    counts.step()
            assert i == 3
            if after == "a step":
                counts.step()
        assert train_the_rest(data, join()) == [1.0] * RECORDS


@pytest.mark.parametrize("how", ["loader", "client", "nothing refers to it", "model"])
def test_loop_that_is_left_after_a_step_reports_its_tasks(tmp_path: pathlib.Path, how: str) -> None:
    """F519: a step for each 4 batches, and a loop that is left with the fourth one in hand."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=1)
    with trainers(tmp_path) as join:

        def train() -> int:
            first = join() if how != "nothing refers to it" else tm.Client(endpoints=join.endpoints, timeout=240)
            counts, loader = Counts(first), loader_of(data, first)
            last = -1
            for i, batch in enumerate(loader, 1):
                counts.add(batch)
                if i == 4:
                    counts.step()
                    last = int(batch[0])
                    break
            if how == "model":
                counts.optimizer.ps.close()
            if how == "loader":
                loader.close()
            if how != "nothing refers to it":
                first.close()
            return last

        last = train()
        gc.collect()
        times = train_the_rest(data, join())
        assert times.pop(last) == 2  # the batch in hand is given again
        assert times == [1.0] * (RECORDS - 1)


@pytest.mark.parametrize("push_every", [1, 3])
def test_next_loader_makes_the_step_of_a_closed_one(tmp_path: pathlib.Path, push_every: int) -> None:
    """F522: three tasks are used without a step, and their loader is closed."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=1)
    with trainers(tmp_path) as join:
        client = join()
        counts, loader = Counts(client, push_every=push_every), loader_of(data, client)
        use_three(counts, loader)
        loader = loader_of(data, client)
        for i, batch in enumerate(loader, 4):
            counts.add(batch)
            if i % 4 == 0:
                counts.step()
        assert client.over == "the job has ended"
        if push_every == 1:
            assert counts.pulled() == [1.0] * RECORDS


@pytest.mark.parametrize(("per_task", "size"), [(4, 2), (4, 3), (1, 1)])
def test_tasks_of_accumulated_gradients_return_with_a_killed_agent(tmp_path: pathlib.Path, per_task: int, size: int) -> None:
    """F512: the loop does not read `is_last`, and tasks can end where batches do. The agent is killed in the third batch."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=per_task)
    with trainers(tmp_path) as join:
        client = join()
        counts, loader = Counts(client), loader_of(data, client, size)
        for i, batch in enumerate(loader, 1):
            counts.add(batch)
            if i == 3:
                time.sleep(1)  # a finish that comes too early is stored
                end(client.agent_pid)
            if i % 4 == 0:
                counts.step()
        counts.step()
        assert min(counts.pulled()) >= 1


@pytest.mark.parametrize(("how", "killed"), [("is_last", 2.5), ("done", 2), ("next loader", 1), ("tasks", 1.5)])
def test_tasks_of_a_step_that_waits_for_others_return_with_a_killed_agent(tmp_path: pathlib.Path, how: str, killed: float) -> None:
    """F512: two steps are pushed together, or the step is still to come. The agent is killed while nothing is pushed."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=1)
    with trainers(tmp_path) as join:
        client = join()
        counts, loader = Counts(client, push_every=1 if how == "tasks" else 2), loader_of(data, client)
        if how in ("next loader", "tasks"):
            use_three(counts, loader)
            if how == "next loader":
                counts.optimizer.step(records=3)
                counts.optimizer.zero_grad()
                loader = loader_of(data, client)
        batches = (np.array([number_of(r) for r in task]) for task in client.tasks()) if how == "tasks" else iter(loader)

        def kill(now: float) -> None:
            if now == killed and client.session == 1:
                time.sleep(1)  # a finish that comes too early is stored
                end(client.agent_pid)

        for i, batch in enumerate(batches, 1):
            kill(i)
            counts.add(batch)
            if how == "done":
                loader.done()
            if how in ("done", "next loader") or i % 2 == 0:
                counts.optimizer.step(records=1)
                counts.optimizer.zero_grad()
            if how == "is_last" and loader.is_last:
                assert client.session > 1  # it reads ahead
            kill(i + 0.5)
        assert client.over == "the job has ended"
        counts.optimizer.step(records=1)
        assert min(counts.pulled()) > 0


def test_tasks_of_a_step_that_cannot_be_pushed_at_the_end_return(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F512: the parameter server does not answer when the trainer ends. Other trainers get the tasks of the step that waited for a push."""
    monkeypatch.setattr("trainmaster.client._SLICE", 1.0)
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=1)
    with trainers(tmp_path) as join:
        client = join()
        counts, loader, used = Counts(client, push_every=2), loader_of(data, client), list[int]()
        for batch in loader:
            used += batch.tolist()
            counts.add(batch)
            counts.step()
            if len(used) == 3:
                break
        stop(join.server)
        client.timeout = 1
        with pytest.raises(tm.errors.MasterTimeoutError):
            loader.done()
        client.close()
        assert "gradients at the end were not pushed, and their tasks return to the queue" in caplog.text
        end(join.server)
        left = [n for batch in loader_of(data, join()) for n in batch.tolist()]
        assert sorted(left) == sorted({*range(RECORDS)} - {*used[:2]})


def test_step_between_two_passes_is_of_the_pass_before(tmp_path: pathlib.Path) -> None:
    """F512: the loader has the first batch of the next pass then. The agent is killed before the step with it."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=1)
    with trainers(tmp_path, "--passes", "2") as join:
        client = join()
        counts, loader = Counts(client), loader_of(data, client)
        for epoch in loader.passes():
            for i, batch in enumerate(epoch, 1):
                counts.add(batch)
                if i == 3 and epoch.number == 2 and client.session == 1:
                    time.sleep(1)  # a finish that comes too early is stored
                    end(client.agent_pid)
                if i % 4 == 0:
                    counts.step()
            counts.step()
        assert min(counts.pulled()) >= 2


def test_closed_model_pushes_nothing(tmp_path: pathlib.Path) -> None:
    """F523: it has a batch that waits for others, and another model of the session trains on."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=2)
    with trainers(tmp_path) as join:
        client = join()
        loader = loader_of(data, client, 2)
        counts = Counts(client, push_every=4)
        for _ in range(13):
            counts.optimizer.step(records=1)  # of gradients that are zero
        counts.optimizer.ps._done -= 1  # as after Ctrl-C in the last push
        counts.optimizer.ps.close()
        refuses("push: expected an open client, found a closed one", counts.optimizer.ps.push)
        counts.optimizer.ps.close()
        ps = tm.ps.Client({"weight": np.zeros((1, RECORDS), np.float32)}, optimizer="sgd", lr=1.0, client=client)
        counts.optimizer.zero_grad()
        for batch in loader:
            ps.gradients["weight"][:] = 0
            ps.gradients["weight"][0, batch] = -1
            ps.push_pull()
        ps.pull()
        assert ps.parameters["weight"][0].tolist() == [1.0] * RECORDS


def test_loop_goes_on_without_its_closed_model(tmp_path: pathlib.Path) -> None:
    """F523: the batches that wait are dropped with the model."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=2)
    with trainers(tmp_path) as join:
        client = join()
        counts, loader = Counts(client, push_every=4), loader_of(data, client)
        for i, batch in enumerate(loader):
            if i == 0:
                counts.add(batch)
                counts.step()
                counts.optimizer.ps.close()
        assert client.over == "the job has ended"


def test_loader_has_no_numbers_of_the_session_of_a_closed_model(tmp_path: pathlib.Path) -> None:
    """F523: it has no task in hand, and the next session counts tasks from 1."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=1)
    with trainers(tmp_path, "--task-timeout-min", "10m") as join:
        client = join()
        counts, loader = Counts(client), loader_of(data, client)
        for i, batch in enumerate(loader, 1):
            counts.add(batch)
            counts.step()
            if i == 4:
                loader.done()
                break
        counts.optimizer.ps.close()
        counts = Counts(client)
        for batch in loader:
            counts.add(batch)
            counts.step()
        assert counts.pulled() == [1.0] * RECORDS


@pytest.mark.parametrize("where", ["in the loop", "after a loop that was left"])
def test_model_is_made_again_with_tasks_in_hand(tmp_path: pathlib.Path, where: str) -> None:
    """F540: what is in hand is of another session, so no step applies it."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=2)
    with trainers(tmp_path) as join:
        client = join()
        counts, loader = Counts(client), loader_of(data, client)
        first = -1
        for batch in loader:
            counts.add(batch)
            counts.step()
            if client.session > 1:
                continue
            first = int(batch[0])
            counts.optimizer.ps.close()
            counts = Counts(client)
            counts.add(batch)
            counts.step()  # it is dropped
            refuses("push: the batch in hand is of a session that has ended", counts.optimizer.ps.push)
            if where != "in the loop":
                break
        for batch in loader if where != "in the loop" else ():
            counts.add(batch)
            counts.step()
        assert client.over == "the job has ended"
        times = counts.pulled()
        assert times[first] == 2  # the first step, and the task that returned
        assert times.count(1.0) == RECORDS - 1


@pytest.mark.parametrize("why", ["not finite", "no server"])
def test_tasks_of_a_step_that_no_server_has_return(tmp_path: pathlib.Path, why: str) -> None:
    """F528: the step for 4 batches fails, and the script ends."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=1)
    with contextlib.ExitStack() as stack:
        servers = Servers(tmp_path, stack, "--ps", "1", "--chunks-per-task", "1")
        server = servers.serve("--ps-ttl", "5s", "--checkpoint-dir", str(tmp_path / "checkpoints"))
        with tm.Client(endpoints=servers.etcd, timeout=240) as first:
            counts, loader = Counts(first), loader_of(data, first)
            for _, batch in zip(range(4), loader):
                counts.add(batch)
            if why == "not finite":
                counts.model.weight.grad[0, 0] = math.nan  # type: ignore[index]
                refuses('gradient "weight": element 0 is NaN', counts.step)
            else:
                server.kill()
                server.wait()
                first.timeout = 3
                refuses("expected parameter servers within 3 s", counts.step)
        if why != "not finite":
            servers.serve("--checkpoint-dir", str(tmp_path / "checkpoints"))
        assert train_the_rest(data, stack.enter_context(tm.Client(endpoints=servers.etcd, timeout=240))) == [1.0] * RECORDS


def test_interrupted_step_counts_when_the_servers_have_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F528: Ctrl-C before the answer to a push."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=1)
    with trainers(tmp_path) as join:
        with join() as first:
            counts, loader = Counts(first), loader_of(data, first)
            for _, batch in zip(range(4), loader):
                counts.add(batch)

            def interrupted(self: tm.ps.Client) -> None:
                raise KeyboardInterrupt

            with monkeypatch.context() as m:
                m.setattr(tm.ps.Client, "_await", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    counts.step()
            loader.done()
        assert train_the_rest(data, join()) == [1.0] * RECORDS


@pytest.mark.parametrize("after", ["nothing", "a step"])
@pytest.mark.parametrize("how", ["loader", "tasks"])
def test_drained_trainer_keeps_what_it_has_begun(tmp_path: pathlib.Path, how: str, after: str) -> None:
    """F529: a step for each 4 batches. The trainer is drained in the third one. Another trainer must not have these tasks before it leaves."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=1)
    with trainers(tmp_path) as join, join() as second:
        with tm.Client(endpoints=join.endpoints, timeout=240, id="drained") as first:
            counts, used = Counts(first), 0
            for used, batch in enumerate(source(how, data, first), 1):
                counts.add(batch)
                if used == 3:
                    drain(join.endpoints, "drained")
            assert first.over == "an operator drains this trainer"
            assert used < 10  # its own requests say it
            others = Counts(second)
            rest = source("tasks", data, second)
            for _ in range(4):
                others.add(next(rest))
                others.step(records=1)
            assert max(others.pulled()) == 1
            if after == "a step":
                counts.step(records=1)
                assert next(first.tasks(), None) is None
        for batch in rest:
            others.add(batch)
            others.step(records=1)
        assert others.pulled() == [1.0] * RECORDS


@pytest.mark.parametrize("how", ["loader", "tasks"])
def test_full_window_is_not_the_end_of_the_tasks(tmp_path: pathlib.Path, how: str) -> None:
    """F550: a step for 4 batches of a task each, and a trainer that may hold 2."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=1)
    with trainers(tmp_path) as join:
        with tm.Client(endpoints=join.endpoints, timeout=240, window=2) as first:
            counts, batches = Counts(first), source(how, data, first)
            for _ in range(2):
                counts.add(next(batches))
            refuses("step: expected one for the records of at most 2 tasks, the window of this trainer, found none", lambda: next(batches))
        assert train_the_rest(data, join()) == [1.0] * RECORDS


def test_gradients_of_the_last_step_do_not_fill_the_window(tmp_path: pathlib.Path) -> None:
    """F559: the script clears gradients before each backward pass, and trains with the first batch alone."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=1)
    with trainers(tmp_path) as join, tm.Client(endpoints=join.endpoints, timeout=240, window=2) as client:
        counts = Counts(client)
        for i, batch in enumerate(loader_of(data, client)):
            if i == 0:
                counts.add(batch)
                counts.optimizer.step()
        assert (i, client.over) == (RECORDS - 1, "the job has ended")


@pytest.mark.parametrize("how", ["loader", "tasks"])
def test_optimizer_that_is_made_in_the_loop_has_the_batch_in_hand(tmp_path: pathlib.Path, how: str) -> None:
    """F551: a step for 4 batches. The agent is killed in the third one."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=1)
    with trainers(tmp_path) as join:
        client = join()
        counts: Counts | None = None
        for i, batch in enumerate(source(how, data, client), 1):
            counts = counts or Counts(client)
            counts.add(batch)
            if i == 3:
                time.sleep(1)  # a finish that comes too early is stored
                end(client.agent_pid)
            if i % 4 == 0:
                counts.step(records=1)
        assert counts is not None
        counts.step(records=1)
        assert min(counts.pulled()) >= 1


def test_master_that_is_away_has_not_said_that_there_is_no_task(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F552: tasks wait for a step, and the request for others has no answer at first."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=1)
    with trainers(tmp_path) as join:
        client = join()
        counts, ask = Counts(client), client._ask
        batches = source("tasks", data, client)
        for _ in range(3):
            counts.add(next(batches))
        asked: list[list[int]] = []

        def away(op: str, wait: float, **fields: Any) -> dict[str, Any]:
            if op == "next":
                asked.append(fields["finished"])
                if len(asked) < 3:
                    return {"tasks": [], "wait": "task", "answered": False, "silent": 0}
            return ask(op, wait, **fields)

        monkeypatch.setattr(client, "_ask", away)
        next(batches)
        assert asked == [[], [], []]
        del asked[:]
        client._while_waiting = lambda: True  # as a loader after SIGTERM
        assert next(batches, None) is None
        assert asked == [[]]


@pytest.mark.parametrize("workers", [0, 2])
def test_is_last_does_not_wait_after_done(tmp_path: pathlib.Path, workers: int) -> None:
    """F556: another trainer has the last task. The agent is killed before the step."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=1)
    with trainers(tmp_path) as join:
        other = join()
        other.report_dataset(data)
        assert next(other.tasks())
        with join() as first:
            counts, n, is_last = Counts(first), 0, False
            leave = threading.Timer(30, other.close)  # a wait of is_last ends, and the test fails
            leave.start()
            loader = tm.torch.DataLoader(data, decode=number_of, batch_size=1, num_workers=workers, client=first)
            for batch in loader:
                n += 1
                counts.add(batch.tolist())
                loader.done()
                is_last = loader.is_last
                if is_last:
                    break
            leave.cancel()
            assert is_last
            assert RECORDS - n in {1, 2}  # the other trainer may have requested a task ahead
            end(first.agent_pid)
            loader.close()
        other.close()
        assert train_the_rest(data, join()) == [1] * RECORDS


def interrupts() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["optimizers", "interrupt", "dataset"])
def test_task_in_hand_is_in_no_step_after_two_sessions(tmp_path: pathlib.Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """F557: Ctrl-C can come while a session begins."""
    data = numbers(tmp_path, RECORDS, shards=1, per_chunk=1)
    with trainers(tmp_path) as join:
        client = join()
        client.report_dataset(data)
        counts = Counts(client)
        for i, task in enumerate(client.tasks()):
            batch = [number_of(r) for r in task]
            for _ in range((1 if how == "interrupt" else 2) * (i == 2)):
                if how != "dataset":
                    counts.optimizer.ps.close()
                    if how == "interrupt":
                        with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
                            m.setattr(client, "_start", interrupts)
                            Counts(client)
                    counts = Counts(client)
                else:
                    end(client.agent_pid)
                    client.report_dataset(data)
            counts.add(batch)
            counts.step()
        assert counts.pulled() == [1] * RECORDS


@pytest.fixture
def group(tmp_path: pathlib.Path) -> Iterator[Any]:
    """A group of one rank."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def test_group_without_another_task_ends(tmp_path: pathlib.Path, group: Any) -> None:
    """F553: a rank makes a step for 4 batches, does not read `is_last`, and 2 batches are left."""
    data = numbers(tmp_path, 10, shards=1, per_chunk=1)
    with trainers(tmp_path) as join:
        client = join()
        loader = tm.torch.DataLoader(data, decode=number_of, batch_size=1, client=client, group=group)
        counts, i = Counts(client), 0
        for i, batch in enumerate(loader, 1):
            counts.add(batch.tolist())
            if i % 4 == 0:
                counts.step(records=1)
        assert (i, client.over) == (10, "the job has ended")


def test_group_waits_for_the_answer_of_a_master(tmp_path: pathlib.Path, group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """F552: after 2 batches without a step, 3 requests for a task have no answer."""
    data = numbers(tmp_path, 2, shards=1, per_chunk=1)
    with trainers(tmp_path) as join:
        client = join()
        loader = tm.torch.DataLoader(data, decode=number_of, batch_size=1, client=client, group=group)
        counts, read = Counts(client), client._next
        unreported: list[int] = []

        def away(request: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
            reply = read(request)
            if reply is not None and reply.get("wait") == "task" and len(unreported) < 3:
                unreported.append(len(loader.account.finished))
                client._refusal = reply | {"answered": False}
            return reply

        monkeypatch.setattr(client, "_next", away)
        for batch in loader:
            counts.add(batch.tolist())
        assert client.over == "the job has ended"
        assert unreported[-1] == 2, unreported
