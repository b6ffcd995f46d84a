"""Embeddings on parameter servers: real masters, servers and trainers, and the example examples/flights."""

from __future__ import annotations

import contextlib
import copy
import doctest
import functools
import json
import pathlib
import random
import re
import shlex
import subprocess
import sys
import threading
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from lab import MASTER, Servers, refuses

import trainmaster as tm
from trainmaster import ps

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "flights"


@pytest.fixture
def client(tmp_path: pathlib.Path) -> Iterator[tm.Client]:
    """A trainer of a job with two parameter servers."""
    with contextlib.ExitStack() as stack:
        servers = Servers(tmp_path, stack, "--ps", "2")
        servers.serve()
        servers.serve()
        yield stack.enter_context(tm.Client(endpoints=servers.etcd))


class Model(torch.nn.Module):
    """A linear function of the rows of some words."""

    def __init__(self, words: int = 2, **settings: Any) -> None:
        super().__init__()
        self.words = tm.torch.Embedding("words", np.int64(3), **settings)  # type: ignore[arg-type]
        self.last = torch.nn.Linear(3 * words, 1)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.last(self.words(ids).flatten(-2))


def test_rows_of_any_id(client: tm.Client) -> None:
    """Ids have no bound. Gradients of an id that repeats, in one look-up or several, are summed. Look-ups create no rows and are no updates."""
    model = Model(admit_after=2, expire_after=100)
    ids = torch.tensor([[2**62, -5], [2**62, 2**63 - 1]])
    opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=0.5, client=client)
    with torch.no_grad():
        rows = model.words(ids)
        assert rows.shape == (2, 2, 3) and not rows.requires_grad
        assert torch.equal(rows[0, 0], rows[1, 0]) and not torch.equal(rows[0, 0], rows[0, 1])
        assert 0 < rows.abs().max() < 0.05
        assert len(model.words(torch.tensor([0, 2**62, 2**32, -(2**63)])).unique(dim=0)) == 4
    for _ in range(3):
        assert torch.equal(model.eval().words(ids), rows), "a look-up was an update"
    model.train()
    for is_applied in (False, True):  # the second update of an id creates its row
        opt.zero_grad()
        (model.words(ids) * torch.tensor([1.0, 2.0, 4.0])).sum().backward()
        model.words(ids[0, 0]).sum().backward()
        opt.step()
        assert opt.ps.step == opt.ps.version, "rows are pushed with the step of the parameters"
        with torch.no_grad():
            change = rows - model.words(ids)
        want = torch.tensor([[1.0, 2.0, 4.0]]) * 0.5 * is_applied
        assert torch.allclose(change[0, 1], want, atol=1e-6) and torch.allclose(change[1, 1], want, atol=1e-6), change
        assert torch.allclose(change[:, 0], 2 * want + 0.5 * is_applied, atol=1e-6), change
    with torch.no_grad():
        assert model.words(torch.zeros((2, 0), dtype=torch.int64)).shape == (2, 0, 3)
    assert not [k for k in model.state_dict() if k.startswith("words")]


def test_rows_expire(client: tm.Client) -> None:
    """A row is removed after as many steps as the embedding says. The clock of a row is that of a part of the table."""
    model = Model(expire_after=4)
    opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=0.5, client=client)
    others, ids = torch.arange(30_000).reshape(-1, 2), torch.tensor([-1])
    with torch.no_grad():
        first = model.words(ids)
    for i in range(8):
        opt.zero_grad()
        model.words(ids if i == 0 else others).sum().backward()
        opt.step()
        with torch.no_grad():
            is_kept = not torch.equal(model.words(ids), first)
        assert is_kept if i < 5 else not is_kept or i < 7, i


def test_bad_argument_is_named_when_the_embedding_is_made() -> None:
    wrong: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("embedding 'a': dim: expected a whole number of at least 1, found 0", ("a", 0), {}),
        ("embedding 'a': dim: expected a whole number of at least 1, found '16'", ("a", "16"), {}),
        ("embedding 'a': dim: expected a whole number of at least 1, found 3.5", ("a", 3.5), {}),
        ("embedding 16: name: expected text, found 16: the arguments are name, dim", (16, "a"), {}),
        ("embedding 'a': init: expected zeros, uniform or normal, found 'xavier'", ("a", 2), {"init": "xavier"}),
        ("embedding 'a': scale: expected a finite number of at least 0, found -1", ("a", 2), {"scale": -1}),
        ("embedding 'a': scale: expected a finite number of at least 0, found nan", ("a", 2), {"scale": float("nan")}),
        ("embedding 'a': seed: expected a whole number of at least 0, found -1", ("a", 2), {"seed": -1}),
        ("embedding 'a': expire_after: expected a whole number of at least 1, found -1", ("a", 2), {"expire_after": -1}),
        ("embedding 'a': admit_after: expected a whole number of at least 1, found 0", ("a", 2), {"expire_after": 1, "admit_after": 0}),
        ("embedding 'a': admit_after: expected expire_after with it, found none", ("a", 2), {"admit_after": 2}),
    ]
    for words, arguments, settings in wrong:
        refuses(words, functools.partial(tm.torch.Embedding, *arguments, **settings))


def test_names_of_rules_and_settings_are_those_of_the_servers() -> None:
    """The package checks them, so that an error has the name of its argument."""
    done = subprocess.run([MASTER, "run", "--optimizer", "nope"], capture_output=True, text=True, check=False)
    found = re.search(r"expected one of ([a-z, ]+)", done.stderr)
    assert found is not None, done.stderr
    assert found[1] == ", ".join(ps._RULES)
    settings = pathlib.Path(__file__).parents[2] / "pserver/optimizer/setting.go"
    names = {n.replace("-", "_") for n in re.findall(r'\{Name: "([a-z0-9-]+)"', settings.read_text())} - {"optimizer", "learning_rate"}
    assert names == {*ps._NUMBERS, "schedule", *ps._STEPS_OF_SCHEDULE, *ps._NUMBERS_OF_SCHEDULE}
    above_zero = re.findall(r'\{Name: "([a-z0-9-]+)".* instead: "', settings.read_text())
    assert {n.replace("-", "_") for n in above_zero} | {"lr"} == set(ps._ABOVE_ZERO)


def test_bad_argument_of_an_optimizer_is_named() -> None:
    model, make = torch.nn.Linear(1, 1), tm.torch.ParameterServerOptimizer
    wrong: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("model: expected a torch.nn.Module, found NoneType: give the model, not its parameters", (None,), {}),
        ("model: expected a torch.nn.Module, found generator: give the model, not its parameters", (model.parameters(), "adam"), {}),
        ("optimizer: expected one of sgd, momentum, nesterov, adagrad, adam, adamw, ftrl, found 'nope'", (model, "nope"), {}),
        ("adam, adamw, ftrl, found <class 'torch.optim.adam.Adam'>", (model, torch.optim.Adam), {}),
        ("wire_dtype: expected float32 or bfloat16, found 'int8'", (model,), {"lr": 1, "wire_dtype": "int8"}),
        ("lr: expected a finite number above 0, found 'x'", (model,), {"lr": "x"}),
        ("lr: expected a finite number above 0, found -1", (model,), {"lr": -1}),
        ("lr: expected a finite number above 0, found nan", (model,), {"lr": float("nan")}),
        ("lr: expected a learning rate above 0, found none: sgd has no default", (model,), {}),
        ("momentum: expected optimizer momentum or nesterov with it, found 'adam'", (model, "adam"), {"momentum": 0.9}),
        ("schedule_steps: expected the number of steps of schedule 'cosine', found none", (model, "adam"), {"schedule": "cosine"}),
        ("weight_decay: expected a finite number of at least 0, found 'x'", (model,), {"weight_decay": "x"}),
        ("warmup_steps: expected a whole number of at least 0, found 1.5", (model,), {"warmup_steps": 1.5}),
        ("betas: expected a setting of a rule (momentum, beta1, beta2, ", (model, "adam"), {"betas": (0.9, 0.99)}),
        ("push_every: expected a whole number of at least 1, found 0", (model,), {"push_every": 0}),
        ("pull_every: expected a whole number of at least 1, found 0", (model,), {"pull_every": 0}),
        ("pull_every: expected a multiple of push_every, which is 2, found 3", (model,), {"push_every": 2, "pull_every": 3}),
        ("client: expected a tm.Client, found 5", (model,), {"lr": 1, "client": 5}),
        ("staleness: expected a whole number of at least 0, found -1", (model,), {"lr": 1, "staleness": -1}),
    ]
    for words, arguments, settings in wrong:
        refuses(words, functools.partial(make, *arguments, **settings))


def test_further_group_of_parameters_is_refused(client: tm.Client) -> None:
    """F521: no server would train it."""
    model = Model()
    opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=0.5, client=client)
    refuses("add_param_group: expected all parameters in the model", lambda: opt.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]}))
    assert len(opt.param_groups) == 1


def test_bad_input_is_explained(client: tm.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    ids = torch.tensor([[1, 2], [1, 3]])
    unmade = "embedding 'words': expected a ParameterServerOptimizer of the model, found none: make it before the first look-up"
    refuses(unmade, lambda: model(ids))
    make: Callable[..., Any] = tm.torch.ParameterServerOptimizer
    twins = torch.nn.ModuleList([Model(), Model()])
    refuses("embedding 'words': expected a name that no other embedding of the model has", lambda: make(twins, lr=0.1, client=client))
    alone = tm.torch.Embedding("a", 2)
    refuses("expected at least one parameter that needs a gradient, besides embeddings", lambda: make(alone, lr=0.1, client=client))
    refuses("use clip-value", lambda: make(model, lr=0.1, clip_norm=1.0, client=client))
    refuses("expected float32 with embedding tables", lambda: make(model, lr=0.1, wire_dtype="bfloat16", client=client))
    refuses("admit_after: expected expire_after with it", lambda: make(Model(admit_after=2), lr=0.1, client=client))
    refuses(unmade, lambda: model(ids))

    opt = make(model, "sgd", lr=0.5, client=client)
    refuses("embedding 'words': expected a tensor of ids, found list: use torch.tensor(ids)", lambda: model.words([1]))
    refuses("embedding 'words': expected ids of type int64, found torch.int32", lambda: model(ids.int()))
    refuses(unmade, lambda: copy.deepcopy(model)(ids))
    assert opt.ps.lookup("words", []).shape == (0, 3)
    refuses("table 'words': expected ids of type int64", lambda: opt.ps.lookup("words", [1.0]))
    refuses("table 'letters': expected one of the tables of the client, ['words']", lambda: opt.ps.lookup("letters", [1]))
    refuses("expected gradients of shape (1, 3), found (1, 4)", lambda: opt.ps.push(rows={"words": ([1], np.zeros((1, 4), np.float32))}))

    with torch.no_grad():
        before = [model.words(ids), *(p.clone() for p in model.parameters())]
    loss = model(ids).sum()
    loss.backward()
    (model.words(ids[0]) * torch.tensor([1, float("nan"), 1])).sum().backward()
    refuses('table "words": element 1 of id 1 is NaN', opt.step)
    scaler = torch.amp.GradScaler("cpu")
    opt.zero_grad()
    scaler.scale(model(ids).sum()).backward()
    refuses("expected no GradScaler with embeddings", lambda: scaler.step(opt))
    opt.pull()
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(before, [model.words(ids), *model.parameters()]))
    model(ids).sum().backward()
    opt.zero_grad()
    model.words(ids[0]).sum().backward()
    opt.step()
    with torch.no_grad():
        assert torch.allclose(before[0][0] - model.words(ids)[0], torch.tensor(0.5)), "gradients of before zero_grad are applied"

    opt.ps.push(rows={"words": ([1], np.zeros((1, 3), np.float32))})
    version = opt.ps.version
    opt.ps.lookup("words", [1])
    assert opt.ps.version == version, "a look-up changes the version of the parameters"
    with monkeypatch.context() as patch:
        patch.setattr(client, "timeout", 0.0)
        patch.setattr(client._link, "call", unittest.mock.Mock(side_effect=tm.errors.MasterTimeoutError("no answer")))
        refuses("lookup: expected parameter servers within 0 s, found none", lambda: model(ids))
    client.close()
    for many in (1, 1_000_000):
        refuses("lookup: expected an open client, found a closed one", functools.partial(model.words, torch.arange(many)))


def interrupted(owner: Any, method: str, after: int, call: Callable[[], Any]) -> None:
    """Do `call`, with a Ctrl-C after so many calls of a method and at the end of the next one, or at its begin if it is a request."""
    found, left = getattr(owner, method), [after]

    def replaced(*arguments: Any, **fields: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            return found(*arguments, **fields)
        if method != "_call":
            found(*arguments, **fields)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, replaced)
        with pytest.raises(KeyboardInterrupt):
            call()


@pytest.mark.parametrize("push_every", [1, 3])
def test_interrupted_step_loses_and_repeats_no_gradient(client: tm.Client, push_every: int) -> None:
    """A step with a Ctrl-C before its request has no effect and can be repeated. After the request, the gradients are applied once."""
    model = Model(1, init="zeros")
    opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=1.0, client=client, push_every=push_every)
    n = push_every

    def step(i: int) -> None:
        opt.zero_grad()
        model.words(torch.tensor([i])).sum().backward()
        model.last.bias.sum().backward()
        opt.step(records=1)

    begin = model.last.bias.item()
    points = ((opt._lookups, "added_to", 0), (opt, "_settle", 2), (opt.ps, "_place", 1), (client, "_call", 1))
    for k, (owner, method, after) in enumerate(points):
        for i in range(n - 1):
            step(i)
        interrupted(owner, method, after, lambda: step(n - 1))
        if owner is not client:  # the agent does not have the request
            step(n - 1)
        opt.pull()
        with torch.no_grad():
            moved = -model.words(torch.arange(n))
        assert torch.allclose(moved, torch.full((n, 3), (k + 1) / n)), (method, moved)
        assert abs(begin - model.last.bias.item() - (k + 1)) < 1e-5, (method, begin, model.last.bias)
    for i in range(n - 1):
        step(i)
    if n > 1:
        interrupted(opt.ps, "_place", 0, opt.flush)
        opt.flush()
        opt.flush()
        with torch.no_grad():
            moved = -model.words(torch.arange(n - 1))
        assert torch.allclose(moved, torch.full((n - 1, 3), len(points) / n + 1 / (n - 1))), moved


def test_lookups_of_threads_do_not_mix(client: tm.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that looks rows up while another look-up has ids in the shared memory waits for it."""
    model = Model()
    opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=0.5, client=client)
    ids = [torch.tensor([i]) for i in range(2)]
    want = [model.words(i).detach() for i in ids]
    found: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: found.append(model.words(ids[1]).detach()), daemon=True)]
    place, waiting = opt.ps._place, list(threads)

    def placed(*arguments: Any) -> Any:
        value = place(*arguments)
        while waiting:
            thread = waiting.pop()
            thread.start()
            thread.join(2)  # it ends only if it does not wait
        return value

    monkeypatch.setattr(opt.ps, "_place", placed)
    assert torch.equal(model.words(ids[0]).detach(), want[0])
    threads[0].join()
    assert torch.equal(found[0], want[1])


EQUAL = """
import copy, json, sys
import torch, trainmaster as tm
options = json.loads(sys.argv[1])
torch.manual_seed(3)
SIZE = options["size"]
FAR = torch.arange(SIZE) * (2**62 // SIZE) - 5  # the id of a word on the servers
class Model(torch.nn.Module):
    def __init__(self, words, far):
        super().__init__()
        self.words, self.far = words, far
        self.last = torch.nn.Linear(4 * (SIZE + 2 if options["all"] else 3), 1)
    def forward(self, n):
        ids = torch.stack([n % SIZE, n * n % SIZE, n % SIZE], 1)
        if options["all"]:  # Adam's moments of a row that is not in the batch differ from those of PyTorch
            ids = torch.cat([torch.arange(SIZE).expand(len(n), -1), ids[:, :2]], 1)
        ids = FAR[ids] if self.far else ids
        return self.last(torch.cat([self.words(ids[:, :1]), self.words(ids[:, 1:])], 1).flatten(1))
def parse(record): return torch.tensor(int(bytes(record)))
loader = tm.torch.DataLoader(decode=parse, batch_size=8)
model = Model(tm.torch.Embedding("words", 4, scale=0.5), True)
opt = tm.torch.ParameterServerOptimizer(model, options["rule"], lr=0.05, push_every=options["push_every"])
like = Model(torch.nn.Embedding(SIZE, 4), False)
like.last.load_state_dict(model.last.state_dict())
with torch.no_grad():
    like.words.weight.copy_(model.words(FAR))
first = like.words.weight.detach().clone()
reference = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[options["rule"]](like.parameters(), lr=0.05)
at, records = opt.ps.version, 0
states = {at: copy.deepcopy((like.state_dict(), reference.state_dict()))}  # of the updates
def follow():  # after a rollback, the reference has the state that the job continues with
    global at
    if opt.ps.version != at:
        at = opt.ps.version
        for part, state in zip((like, reference), copy.deepcopy(states[at])):
            part.load_state_dict(state)
for n in loader:
    y = (n % 7 - 3).float()[:, None]
    def closure():
        follow()
        loss = torch.nn.functional.mse_loss(model(n), y)
        loss.backward()
        return loss
    if opt.ps.mode == "sync":
        opt.step(closure)
    else:
        opt.zero_grad()
        closure()
        opt.step()
    if opt.ps.mode == "sync" or not records:
        reference.zero_grad()
        records = 0
    (torch.nn.functional.mse_loss(like(n), y) * len(n)).backward()
    records += len(n)
    if opt.ps.version == at + 1:
        for p in like.parameters():
            p.grad /= records
        reference.step()
        at, records = at + 1, 0
        states[at] = copy.deepcopy((like.state_dict(), reference.state_dict()))
assert opt.pull()
with torch.no_grad():
    rows = model.words(FAR)
    assert torch.allclose(rows, like.words.weight, atol=1e-5), (rows - like.words.weight).abs().max()
    assert torch.allclose(model.last.weight, like.last.weight, atol=1e-5)
    assert (rows - first).abs().max() > 0.001
print("equal after", len(states) - 1, "updates", flush=True)
"""


def train(directory: pathlib.Path, program: str, records: int, *arguments: str, options: Any = None) -> str:
    """Run a program with records 0, 1, ..., and return the log of its trainer."""
    (directory / "train.py").write_text(program)
    tm.write_records(directory / "data", (b"%d" % i for i in range(records)), shards=1, chunk_bytes=1 << 20)
    command = [MASTER, "run", "--data", "data-*", "--ps", "2", "--trainers", "1", *arguments, "--", sys.executable, "train.py", json.dumps(options)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=400)
    logs = directory / "trainmaster-run/001/logs"
    assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *(f.read_text()[-8000:] for f in logs.glob("*.log"))])
    return (logs / "trainer-0.log").read_text()


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_rows_equal_those_of_pytorch(tmp_path: pathlib.Path, rule: str, mode: str) -> None:
    """The rows of a trainer are those of torch.nn.Embedding with the same initial rows and the same optimizer."""
    options = {"rule": rule, "all": rule == "adam", "size": 6 if rule == "adam" else 50, "push_every": 1}
    assert "equal after 15 updates" in train(tmp_path, EQUAL, 40, "--passes", "3", "--update-mode", mode, options=options)


def test_rows_of_several_batches_are_pushed_together(tmp_path: pathlib.Path) -> None:
    options = {"rule": "sgd", "all": False, "size": 50, "push_every": 5}
    assert "equal after 3 updates" in train(tmp_path, EQUAL, 40, "--passes", "3", options=options)


KILLED = """
import json, os, pathlib, signal, time
import torch, trainmaster as tm
run = pathlib.Path("trainmaster-run/001")
def pid(name):
    return next(p["pid"] for p in json.loads((run / "processes.json").read_text())["processes"] if p["name"] == name)
def once(name):
    if pathlib.Path(name).exists():
        return False
    pathlib.Path(name).touch()
    return True
def parse(record): return torch.tensor(int(bytes(record)))
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = tm.torch.Embedding("words", 2, init="zeros"), torch.nn.Linear(1, 1)
    def forward(self, n):
        return self.words(n * 2**40).sum() + 0 * self.last(torch.zeros(1)).sum()
loader = tm.torch.DataLoader(decode=parse, batch_size=4, shuffle=True)
model = Model()
opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=1.0)
sets, killed = 0, None
for i, n in enumerate(loader):
    def closure():
        loss = model(n)
        loss.backward()
        return loss
    opt.step(closure)
    found = sum(log.read_text().count("checkpoint complete") for log in run.glob("logs/master*.log"))
    if not pathlib.Path("trainer").exists():
        time.sleep(0.1)  # the next cut needs time, and the job must not end before it
    if found > 1 and i > 2 and once("server"):
        killed = found
        os.kill(pid("pserver-0"), signal.SIGKILL)
    if killed is not None and found > killed + 1 and once("trainer"):
        os.kill(os.getpid(), signal.SIGKILL)
assert opt.pull()
with torch.no_grad():
    rows = model.words(torch.arange(120) * 2**40)
    assert torch.equal(rows, torch.full((120, 2), -3.0)), rows.unique(return_counts=True)
print("each record once per pass", flush=True)
"""


def test_killed_server_and_trainer_lose_and_repeat_no_update(tmp_path: pathlib.Path) -> None:
    """A synchronous job has each record once per pass in its rows, after a server and the trainer were killed."""
    log = train(tmp_path, KILLED, 120, "--passes", "3", "--update-mode", "sync", "--on-trainer-loss", "rewind", "--checkpoint-every", "200ms")
    assert "each record once per pass" in log, log
    assert (tmp_path / "server").exists() and (tmp_path / "trainer").exists()
    masters = "".join(f.read_text() for f in (tmp_path / "trainmaster-run/001/logs").glob("master*.log"))
    assert "rolling back to last cut" in masters, masters


LOST = """
import json, os, pathlib, signal, sys
import torch, trainmaster as tm
def parse(record): return torch.tensor(int(bytes(record)))
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = tm.torch.Embedding("words", 2, init="zeros"), torch.nn.Linear(1, 1)
    def forward(self, n):
        return self.words(n).sum() + 0 * self.last(torch.zeros(1)).sum()
loader = tm.torch.DataLoader(decode=parse, batch_size=4)
model = Model()
push_every = json.loads(sys.argv[1])
opt = tm.torch.ParameterServerOptimizer(model, "sgd", lr=1.0, push_every=push_every)
for i, n in enumerate(loader):
    if i == 3 and push_every == 1:
        os.kill(loader.client.agent_pid, signal.SIGKILL)
        try:
            model.eval()(n)
        except tm.errors.AgentLostError:
            print("an evaluation is an error", flush=True)
        model.train()
    opt.zero_grad()
    model(n).backward()
    if i == 4 and push_every > 1:
        os.kill(loader.client.agent_pid, signal.SIGKILL)
    opt.step()
assert opt.pull()
with torch.no_grad():
    rows = model.words(torch.arange(36))
assert (rows <= -0.999 / push_every).all(), rows  # in an asynchronous job, records can be trained twice
if push_every > 1:  # but not those of batches whose gradients were not pushed
    assert (rows[12:] >= -1.001 / push_every).all(), rows
print("each record is trained", flush=True)
"""


def test_agent_that_is_killed_before_a_lookup_does_not_end_the_loop(tmp_path: pathlib.Path) -> None:
    log = train(tmp_path, LOST, 36, "--passes", "1", options=1)
    assert "an evaluation is an error" in log and "each record is trained" in log, log
    assert "the rows of embedding 'words' were not looked up, and the batch is dropped" in log, log


def test_agent_that_is_killed_with_batches_that_wait_does_not_repeat_their_rows(tmp_path: pathlib.Path) -> None:
    assert "each record is trained" in train(tmp_path, LOST, 36, "--passes", "1", options=3)


def write_flights(file: pathlib.Path) -> None:
    """Write flights with the fields of those of the README. Whether one is late depends on its origin, its destination and the hour."""
    draw = random.Random(1)
    airports = ["".join(draw.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=3)) for _ in range(30)]
    flights = []
    for i in range(8000):
        origin, destination = draw.sample(range(30), 2)
        hour = draw.randrange(24)
        late = (origin % 3 == 0) + (destination % 5 == 0) + (hour > 16) > 1
        flights.append(
            {
                "date": f"2001/{i * 3 // 8000 + 1:02}/{i % 28 + 1:02} {hour:02}:{draw.randrange(60):02}",
                "delay": draw.randint(16, 90) if late != (draw.random() < 0.1) else draw.randint(-20, 15),
                "distance": draw.randint(80, 2500),
                "origin": airports[origin],
                "destination": airports[destination],
            }
        )
    file.write_text(json.dumps(flights))


def test_example_prints_what_its_readme_says(tmp_path: pathlib.Path) -> None:
    (tmp_path / "data/flights").mkdir(parents=True)
    write_flights(tmp_path / "data/flights/flights-20k.json")
    blocks = re.findall(r"^```console\n(.*?)^```", (EXAMPLE / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    commands: dict[str, str] = dict(found for b in blocks for found in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", b, re.MULTILINE))
    assert len(commands) == 3, commands
    said = ""
    for command, output in commands.items():
        words = [{"trainmaster": MASTER, "python": sys.executable}.get(w, w) for w in shlex.split(command)]
        words = [str(EXAMPLE / pathlib.Path(w).name) if w.startswith("examples/") else w for w in words]
        done = subprocess.run(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=400)
        said = done.stdout
        logs = [p.read_text()[-4000:] for p in sorted(tmp_path.glob("trainmaster-run/001/logs/*.log"))]
        assert done.returncode == 0, "\n".join([command, said, *logs])
        assert doctest.OutputChecker().check_output(output, said, doctest.ELLIPSIS), f"{command}\n{said}"
    figures = [float(f) for f in re.findall(r"test AUC ([0-9.]+)", said)]
    assert figures and min(figures) > 0.8, said
