"""The optimizer and the client of parameter servers, with real servers: what scripts do to a model, and arguments."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from lab import Servers, await_text, end, number_of, numbers, refuses

import trainmaster as tm


@contextlib.contextmanager
def trainer(directory: pathlib.Path, *flags: str) -> Iterator[tm.Client]:
    """A trainer of a job with one parameter server."""
    with contextlib.ExitStack() as stack:
        servers = Servers(directory, stack, "--ps", "1", *flags)
        servers.serve()
        if "sync" in flags:
            await_text(directory / "log", "gone back", 1)  # the master brings new servers to an epoch; a trainer of the one before must join again
        yield stack.enter_context(tm.Client(endpoints=servers.etcd, timeout=240))


def swap(model: torch.nn.Module) -> None:
    for p in model.parameters():
        p.data = p.data.clone()


def assign(model: torch.nn.Module) -> None:
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)


MOVES: dict[str, Callable[[torch.nn.Module], Any]] = {
    "nothing": lambda model: None,
    "share_memory": lambda model: model.share_memory(),
    "channels_last": lambda model: model.to(memory_format=torch.channels_last),
    "double": lambda model: model.double(),
    "data": swap,
    "assign": assign,
    "vector": lambda model: torch.nn.utils.vector_to_parameters(torch.nn.utils.parameters_to_vector(model.parameters()), model.parameters()),
}


def test_parameters_that_a_script_moves_are_trained(tmp_path: pathlib.Path) -> None:
    """F538: the gradient of each weight is 1, so two steps of SGD with a rate of 1 subtract 2."""
    for name, move in MOVES.items():
        (tmp_path / name).mkdir()
        with trainer(tmp_path / name) as client:
            model = torch.nn.Sequential(torch.nn.Conv2d(2, 2, 2), torch.nn.Linear(2, 1))
            opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=1.0, client=client)
            move(model)
            before = [p.detach().clone() for p in model.parameters()]
            for _ in range(2):
                opt.zero_grad()
                sum(p.sum() for p in model.parameters()).backward()  # type: ignore[union-attr]
                opt.step(records=1)
            for p, old, own in zip(model.parameters(), before, opt.ps.parameters.values()):
                assert torch.allclose(p.detach(), old - 2), name
                assert np.allclose(p.detach().numpy(), own), name


def test_bad_argument_of_an_exchange_is_named_and_ends_nothing(tmp_path: pathlib.Path) -> None:
    """F539: the agent gets none of the requests, and the next one works."""
    w = np.zeros((2, 3), np.float32)
    ones = {"w": np.ones((2, 3))}
    with trainer(tmp_path) as client:
        make: Any = functools.partial(tm.ps.Client, {"w": w}, client=client)
        for name in ("lr", "beta1", "epsilon"):
            refuses(f"{name}: expected a finite number above 0, found 0.0", functools.partial(make, optimizer="adam", **{name: 0.0}))
        ps = make(optimizer="sgd", lr=1.0)
        for step in (-1, 1.5, 2**64):
            refuses("step: expected a whole number from 0 to", functools.partial(ps.push, step, grads=ones))
        for scale in (torch.tensor(1.0), float("nan"), "1"):
            refuses("scale: expected a finite number", functools.partial(ps.push, grads=ones, scale=scale))
        for records in (0, 1.5):
            refuses("records: expected a whole number of at least 1", functools.partial(ps.stage, grads=ones, records=records))
        for wrong in (0.5, np.ones(3), np.ones((2, 1)), np.ones((1, 2, 3))):
            refuses("grads: 'w': expected an array of shape (2, 3)", functools.partial(ps.push, grads={"w": wrong}))
        for out, shape in (({"w": np.zeros((4, 2, 3), np.float32)}, "(2, 3)"), ({"v": w}, "None")):
            refuses(f"expected an array of the model, of shape {shape}, found shape", functools.partial(ps.pull, out))
        ps.push(np.int64(7), grads=ones, scale=np.float32(0.5))
        refuses("step: expected more than 7, the step of the last push, found 7", lambda: ps.push_pull(7, grads=ones))
        ps.push_pull(8, grads=ones)
        assert ps.parameters["w"].tolist() == [[-1.5] * 3] * 2


def test_usual_numbers_and_gradients_of_a_script(tmp_path: pathlib.Path) -> None:
    """F539: a scheduler with numbers of NumPy, a number of records that is none, and a sparse gradient."""
    with trainer(tmp_path) as client:
        model = torch.nn.Linear(2, 1)
        opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=1.0, client=client)
        before = model.weight.detach().clone()
        scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda _: np.float32(0.5))  # type: ignore[arg-type, return-value]
        model.weight.sum().backward()
        opt.step(records=1)
        scheduler.step()
        assert torch.allclose(model.weight.detach(), before - 0.5)
        refuses("records: expected a whole number of at least 0, found 4.0", lambda: opt.step(records=4.0))  # type: ignore[arg-type]
        opt.zero_grad()
        model.weight.grad = torch.zeros(1, 2).to_sparse()
        refuses("parameter 'weight': expected a dense gradient, found torch.sparse_coo", lambda: opt.step(records=1))
        opt.zero_grad()
        model.weight.sum().backward()
        opt.step(records=1)
        assert torch.allclose(model.weight.detach(), before - 1)


def test_trainer_joins_a_synchronous_job_before_its_servers(tmp_path: pathlib.Path) -> None:
    """F540: the first start of a server rolls the job back, and the session of the trainer ends."""
    with contextlib.ExitStack() as stack:
        servers = Servers(tmp_path, stack, "--ps", "1", "--update-mode", "sync")
        client = stack.enter_context(tm.Client(endpoints=servers.etcd, timeout=240))
        servers.serve()
        opt = tm.torch.ParameterServerOptimizer(torch.nn.Linear(2, 1), "sgd", lr=0.1, client=client)
        assert opt.ps.mode == "sync"


def fail_once(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let the first client of parameter servers meet an error when it opens its arrays."""
    errors, begin = [error], tm.ps.Client._open

    def open_arrays(self: tm.ps.Client, arrays: Any) -> None:
        if errors:
            raise errors.pop()
        begin(self, arrays)

    monkeypatch.setattr(tm.ps.Client, "_open", open_arrays)


def test_rollback_in_the_constructor_begins_another_session(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F540: the trainer has no tasks that it could lose."""
    with trainer(tmp_path) as client:
        fail_once(monkeypatch, tm.errors.RolledBackError("the job was rolled back"))
        tm.ps.Client({"w": np.zeros(1, np.float32)}, lr=1.0, client=client)
        assert client.session == 2


def test_parameters_elsewhere_are_those_of_the_version_after_an_interrupt(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F541: Ctrl-C in a synchronous step, as of a notebook. Each step halves the weight, which is no view of the arena."""
    with trainer(tmp_path, "--update-mode", "sync") as client:
        tm.write_records(tmp_path / "data" / "x", [b"record"] * 40, shards=1)
        client.report_dataset(str(tmp_path / "data" / "x-*"))
        next(client.tasks())
        model = torch.nn.Conv2d(2, 2, 2).to(memory_format=torch.channels_last)
        before = model.weight.detach().clone()
        opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=0.5, client=client)

        def closure() -> Any:
            loss = (model.weight**2).sum() / 2
            loss.backward()
            return loss

        call, main = client._call, threading.main_thread()

        def interrupted(op: str, **fields: Any) -> dict[str, Any]:
            reply = call(op, **fields)
            if op == "stage" and threading.current_thread() is main:
                raise KeyboardInterrupt
            return reply

        opt.step(closure, records=1)
        with monkeypatch.context() as m:
            m.setattr(client, "_call", interrupted)
            with pytest.raises(KeyboardInterrupt):
                opt.step(closure, records=1)
        opt.step(closure, records=1)
        assert torch.allclose(model.weight.detach(), before / 8)
        # A rollback to the beginning would offer these.
        assert np.array_equal(opt.ps._initial["weight"], before.numpy())
        client.over = "the job has ended"
        opt.ps._reopen()
        assert torch.allclose(model.weight.detach(), before / 8), "the end of the job has replaced the trained parameters"
        client.over = ""


def one_weight() -> torch.nn.Linear:
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model


def ones(record: memoryview) -> torch.Tensor:
    return torch.tensor([1.0])


def test_push_of_waiting_batches_leaves_the_gradient_in_hand(tmp_path: pathlib.Path) -> None:
    """F511: the gradient of batch i is -10**i. Tasks have 3 batches, and two are pushed together, as their mean."""
    for name, pulls, expected in (("end", (), 5.5 + 100 + 5500 + 100_000), ("pull", (1, 4), 1 + 55 + 1000 + 55_000)):
        (tmp_path / name).mkdir()
        with trainer(tmp_path / name, "--chunks-per-task", "1") as client:
            model = one_weight()
            loader = tm.torch.DataLoader(numbers(tmp_path / name, 6, shards=1, per_chunk=3), decode=ones, batch_size=1, client=client)
            opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=1.0, push_every=2, client=client)
            opt.zero_grad()
            for i, x in enumerate(loader):
                (-(10.0**i) * model(x)).mean().backward()
                if i in pulls:
                    opt.pull()
                opt.step()
                opt.zero_grad()
            opt.pull()
            assert model.weight.item() == expected, name


def test_tasks_wait_for_the_step_of_accumulated_gradients(tmp_path: pathlib.Path) -> None:
    """F512: a step for each 4 batches, and tasks of 2. The agent is killed after batch 3, when the first task is used."""
    with trainer(tmp_path, "--chunks-per-task", "1", "--passes", "1") as client:
        model = torch.nn.Linear(8, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        loader = tm.Loader(numbers(tmp_path, 8, shards=1, per_chunk=2), decode=number_of, batch_size=1, client=client)
        opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=1.0, client=client)
        opt.zero_grad()
        for i, numbers_of_batch in enumerate(loader, 1):
            (-model.weight[0, int(numbers_of_batch[0])]).backward()
            if i == 3:
                time.sleep(1)  # a finish that comes too early is stored
                end(client.agent_pid)
            if i % 4 == 0 or loader.is_last:
                opt.step()
                opt.zero_grad()
        opt.pull()
        assert model.weight.min() >= 1, model.weight
        assert client.over == "the job has ended"


def test_loop_without_steps_ends(tmp_path: pathlib.Path) -> None:
    """A script can leave batches out."""
    with trainer(tmp_path, "--chunks-per-task", "1", "--passes", "2") as client:
        loader = tm.Loader(numbers(tmp_path, 200, shards=1, per_chunk=2), batch_size=1, client=client)
        opt = tm.torch.ParameterServerOptimizer(one_weight(), "sgd", lr=1.0, client=client)
        assert sum(1 for _ in loader) == 400
        opt.step(records=1)


def test_server_without_parameters_gets_those_of_the_trainer(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F513: a server of an asynchronous job is killed before its first set, and the next push finds no parameters."""
    with trainer(tmp_path, "--passes", "1") as client:
        loader = tm.Loader(numbers(tmp_path, 400), decode=number_of, batch_size=10, client=client)
        model, call, pushes = one_weight(), client._call, 0
        opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=1.0, client=client)

        def lost(op: str, **fields: Any) -> dict[str, Any]:
            nonlocal pushes
            pushes += op == "push_pull"
            if op == "push_pull" and pushes == 4:
                raise tm.errors.RolledBackError("push: parameter server has no parameters, and the job has no checkpoint set yet")
            return call(op, **fields)

        monkeypatch.setattr(client, "_call", lost)
        for _ in loader:
            opt.zero_grad()
            (-model(torch.ones(1))).sum().backward()
            opt.step()
        assert client.session == 2
        assert opt.pull()
        assert model.weight.item() >= 40


def test_gradient_that_is_not_finite_is_refused_in_its_own_step(tmp_path: pathlib.Path) -> None:
    """F514: two batches are pushed together. The other one counts."""
    with trainer(tmp_path) as client:
        model = one_weight()
        loader = tm.Loader(numbers(tmp_path, 4, shards=1), batch_size=1, client=client)
        opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=1.0, push_every=2, client=client)
        for i, _ in enumerate(loader):
            opt.zero_grad()
            (-model.weight.sum() * (float("nan") if i == 1 else 2.0)).backward()
            if i == 1:
                refuses("step: expected finite gradients, found gradient 'weight': element 0 is nan", opt.step)
            else:
                opt.step()
        opt.pull()
        assert model.weight.item() == 4  # (2 + 2) / 2, and 2


def test_batch_without_records_is_not_in_the_mean_of_a_push(tmp_path: pathlib.Path) -> None:
    """F561: batches of 0, 2, 0 and 0 records, as a rank of a group has them. Two are pushed together."""
    with trainer(tmp_path) as client:
        model = WeightAndRow()
        loader = tm.Loader(numbers(tmp_path, 4, shards=1), batch_size=1, client=client)
        opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=1.0, push_every=2, client=client)
        for records, _ in zip((0, 2, 0, 0), loader, strict=False):
            opt.zero_grad()
            (model() * -3.0).sum().backward()
            opt.step(records=records)
        assert opt.pull()
        with torch.no_grad():
            assert model.weight.item() == 3
            assert model.rows(torch.tensor([7])).item() == pytest.approx(3, abs=0.01)  # it begins near 0


def test_group_in_a_synchronous_job_is_refused(tmp_path: pathlib.Path) -> None:
    """F561: the master and the group would wait for each other."""
    with trainer(tmp_path, "--update-mode", "sync") as client:
        make = functools.partial(tm.torch.DataLoader, numbers(tmp_path, 4), decode=ones, client=client)
        refuses("group: expected none in a synchronous job, whose trainers make each step together", functools.partial(make, group=object()))
        make().close()


class WeightAndRow(torch.nn.Module):
    """A weight, and the row of an id."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.rows = tm.torch.Embedding("rows", 1)

    def forward(self) -> torch.Tensor:
        return torch.cat((self.weight, self.rows(torch.tensor([7])).flatten()))


def test_sum_of_large_gradients_is_pushed(tmp_path: pathlib.Path) -> None:
    """F558: two batches of two records, each with a gradient of 3e38, are pushed together."""
    with trainer(tmp_path) as client:
        model = WeightAndRow()
        loader = tm.Loader(numbers(tmp_path, 4, shards=1), batch_size=2, client=client)
        opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=1.0, push_every=2, client=client)
        for _ in loader:
            opt.zero_grad()
            (model() * -3e38).sum().backward()
            opt.step()
        assert opt.pull()
        with torch.no_grad():
            assert model.weight.item() == pytest.approx(3e38)
            assert model.rows(torch.tensor([7])).item() == pytest.approx(3e38)


def test_optimizer_can_be_made_after_one_that_was_refused(tmp_path: pathlib.Path) -> None:
    """F515: a session has one model."""
    with trainer(tmp_path, "--update-mode", "sync") as client:
        make = functools.partial(tm.torch.ParameterServerOptimizer, one_weight(), "sgd", client=client)
        refuses("push_every, pull_every: expected 1 in a synchronous job", functools.partial(make, lr=0.1, push_every=2))
        refuses("staleness: expected none in a synchronous job", functools.partial(make, lr=0.1, staleness=1))
        first = make(lr=0.1)
        refuses("expected one model in a session, found a second one", functools.partial(make, lr=0.1))
        assert client.session == 2
        first.ps.close()
        assert make(lr=0.1).ps.version == first.ps.version
        assert client.session == 3
