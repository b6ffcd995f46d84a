"""An optimizer whose parameters are on the parameter servers of a job."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from .. import errors
from .._check import whole
from ..client import Client as Job
from ..ps import Client
from ._embedding import Lookups, Parts, rows_of

log = logging.getLogger("trainmaster")

LATE = (
    "step: expected a function in a synchronous job, since a gradient that is too late is computed again: "
    "def closure(): loss = loss_of(model(x), y); loss.backward(); return loss; then optimizer.step(closure)"
)

SCALED = "step: expected no GradScaler with embeddings, whose rows it does not know: use torch.autocast with bfloat16, without a scaler"


class _Held(NamedTuple):
    """Batches whose gradients are not pushed. It changes in one step, so that an exception between two bytecodes loses and repeats no batch."""

    batches: int = 0
    records: int = 0
    gradients: torch.Tensor | None = None  # sum over the records in float64, where it cannot overflow; None: those in the arena
    rows: Parts = {}  # noqa: RUF012 it is replaced, never changed
    unpulled: int = 0  # batches since the last pull, also those that are pushed


class ParameterServerOptimizer(torch.optim.Optimizer):
    """An optimizer that the parameter servers run. The parameters of all trainers of a job are the same model.

    `optimizer` is the rule: sgd, momentum, nesterov, adagrad, adam, adamw or ftrl. `settings` are its other numbers, such as `momentum` or
    `clip_norm`. All trainers of a job give the same. One trainer sets the initial parameters, and each has those of the job after the call.
    Make it before the loop, and leave the parameters where they are: on the CPU, they and their gradients are views of the memory that the agent
    shares.

    In an asynchronous job, `step()` pushes the gradients, means over the batch in hand, and gets the parameters. `push_every` batches are pushed
    together, and every `pull_every` batches the parameters are pulled, a multiple of it. With `staleness`, a gradient that misses more than so many
    updates of others is applied with a smaller learning rate. A scheduler of learning rates scales the pushes of this trainer.

    In a synchronous job, `step(closure)` waits for the step of all trainers. `closure` computes the loss of the batch and its gradients, and is
    called again if they came too late. Each batch of the loader needs one step.

    The rows of each `Embedding` of the model are updated with its parameters: a step applies the gradients of all look-ups since the last step.

    Parameters that need no gradient, and buffers, such as running means, stay in this process.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: str = "sgd",
        lr: float | None = None,
        *,
        mode: str | None = None,
        client: Job | None = None,
        push_every: int = 1,
        pull_every: int | None = None,
        staleness: int | None = None,
        wire_dtype: str = "float32",
        **settings: Any,
    ) -> None:
        """See the class."""
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model: expected a torch.nn.Module, found {type(model).__name__}: give the model, not its parameters")
        push_every = whole("push_every", push_every, 1)
        pull_every = push_every if pull_every is None else whole("pull_every", pull_every, 1)
        if pull_every % push_every:
            raise ValueError(f"pull_every: expected a multiple of push_every, which is {push_every}, found {pull_every}")
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        for name, p in named.items():
            if p.dtype != torch.float32:
                raise ValueError(f"parameter {name!r}: expected float32, found {p.dtype}: use model.float(), and autocast for a smaller type")
        if not named:
            raise ValueError("model: expected at least one parameter that needs a gradient, besides embeddings, found none: add a bias")
        self._lookups = Lookups(model)
        self._step_supports_amp_scaling = bool(self._lookups.tables)  # a scaler of gradients then says so before a step
        places = {name: name.rpartition(".") for name in named}
        self._owners = {name: (model.get_submodule(path), own) for name, (path, _, own) in places.items()}
        initial = {name: p.detach().cpu().numpy() for name, p in named.items()}
        self.ps = Client(
            initial,
            optimizer=optimizer,
            lr=lr,
            mode=mode,
            client=client,
            staleness=staleness,
            wire_dtype=wire_dtype,
            tables=self._lookups.tables,
            **settings,
        )
        try:
            self._lookups.serve(self.ps)
            if self.ps.mode == "sync" and (push_every, pull_every) != (1, 1):
                raise ValueError("push_every, pull_every: expected 1 in a synchronous job, where each step has one batch of each trainer")
            self.push_every, self.pull_every = push_every, pull_every
            super().__init__(list(named.values()), {"lr": self.ps.learning_rate})
            self._view()
        except BaseException:
            self.ps.close()
            raise
        self._stepped: dict[str, tuple[torch.Tensor, int]] = {}  # gradients that the last step has, and their versions then
        self.ps.on_moved, self.ps.on_answer = self._view, self.ps.session._note_pushed
        self.is_async = self.ps.mode == "async"
        self.ps.session._optimizer = self

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse a further group: the servers have the parameters of the model, as it was when the optimizer was made."""
        if self.param_groups:
            raise errors.InvalidError(
                "add_param_group: expected all parameters in the model, found a further group: make the optimizer of a model that has them"
            )
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients to zero. They stay where they are."""
        del set_to_none
        self._settle()
        for name, p in self._parameters():
            place, gradient = self._places[name]
            if not _is_view(p, place):
                p.grad = None
            elif p.grad is None or not _is_view(p.grad, gradient):
                p.grad = torch.from_numpy(self._own[name])
        self._gradients.zero_()
        self._lookups.clear()

    def pull(self) -> bool:
        """Get the newest parameters, as before the model is measured or saved. False: they are not available, since the job ended too early."""
        self.flush()
        lost: tuple[type[Exception], ...] = (errors.OverError, *self.ps.lost)
        try:
            self.ps.pull()
        except lost as e:
            log.warning("the parameters of the job were not pulled: %s", e)
            return False
        self._take()
        return True

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, records: int | None = None) -> Any:
        """Apply the gradients of the batch in hand. `records` is its size; by default as the loader has it."""
        if getattr(self, "found_inf", None) is not None:
            for name in ("found_inf", "grad_scale"):  # the scaler leaves them after an exception
                self.__dict__.pop(name, None)
            raise errors.InvalidError(SCALED)
        records = self.ps.session._records_in_hand if records is None else whole("records", records, 0)
        if self.ps.mode == "sync":
            return self._step_together(closure, records)
        loss = self._loss(closure)
        if self.ps.session._is_lost:
            return loss  # the batch is dispatched again
        self._gather()
        if self.push_every > 1:
            self._require_finite()
        held, session = self._added(1 if records is None else records), self.ps.session
        steps, before, is_done = session._steps, self.ps.sequence, False
        try:
            session._note_step()
            if held.batches < self.push_every:
                self._held = held
            else:
                self._push(held)
            is_done = True
            self._stepped = {name: (p.grad, p.grad._version) for name, p in self._parameters() if p.grad is not None}
        finally:
            # After Ctrl-C, the gradients can wait for others, or the agent can have the request.
            if not (is_done or self._held is held or self.ps.sequence != before):
                session._steps = steps
        self._lookups.clear()
        return loss

    @property
    def has_gradients(self) -> bool:
        """Whether there are gradients that are not zero, and are not those of the last step."""
        return self._lookups.has_gradients or any(self._is_new(name, p.grad) for name, p in self._parameters() if p.grad is not None)

    def _is_new(self, name: str, gradient: torch.Tensor) -> bool:
        last, version = self._stepped.get(name, (None, 0))
        return (gradient is not last or gradient._version != version) and bool(gradient.any())

    def flush(self) -> None:
        """Push what `push_every` holds back, and wait until the servers have what is pushed."""
        if self.ps.session._is_lost:
            return
        if self._held.batches:
            self._push(self._held)
        else:
            self._settle()

    def _loss(self, closure: Callable[[], Any] | None) -> Any:
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    def _step_together(self, closure: Callable[[], Any] | None, records: int | None) -> Any:
        if closure is None:
            raise errors.InvalidError(LATE)
        if not records:
            raise errors.InvalidError("step: expected the number of records of the batch, found none: step(closure, records=n)")
        if self.param_groups[0]["lr"] != self.ps.learning_rate:
            raise errors.InvalidError("lr: expected no scheduler in a synchronous job: use schedule=, or `trainmaster job set learning-rate=RATE`")
        while True:
            self.zero_grad()
            loss = self._loss(closure)
            if self.ps.session._is_lost:
                return loss
            self._gather()
            self._gradients.mul_(records)
            rows = rows_of(self._lookups.added_to({}, records))
            try:
                is_included = self.ps.stage(records=records, rows=rows)
            except self.ps.lost:
                return loss  # the batch is dispatched again
            self._take()
            if is_included:
                return loss

    def _settle(self) -> None:
        """Wait until nothing reads the gradients. An operation that was interrupted can have changed the parameters."""
        with contextlib.suppress(*self.ps.lost):  # the tasks of this session are dispatched again
            if self.ps.settle():
                self._take()

    def _added(self, records: int) -> _Held:
        """Return what waits for a push, with the batch in hand."""
        h, gradients = self._held, None
        if self.push_every == 1 and not h.batches:
            records = 1  # the mean is pushed as it is
        else:
            gradients = self._gradients.double() * records if h.gradients is None else h.gradients.add(self._gradients, alpha=records)
        return _Held(h.batches + 1, h.records + records, gradients, self._lookups.added_to(h.rows, records), h.unpulled + 1)

    def _require_finite(self) -> None:
        """Refuse a gradient that is not finite in its own step: a later one would push it, with those of other batches."""
        if not bool(torch.isfinite(self._gradients).all()):
            for name, (_, gradient) in self._places.items():
                for at in (~torch.isfinite(gradient.flatten())).nonzero().flatten().tolist():
                    raise errors.InvalidError(f"step: expected finite gradients, found gradient {name!r}: element {at} is {gradient.flatten()[at]}")
        if found := self._lookups.not_finite():
            raise errors.InvalidError(f"step: expected finite gradients, found {found}")

    def _push(self, held: _Held) -> None:
        """Push gradients. Those that waited are forgotten when the agent has the request. After an exception before it, the next step pushes them."""
        self._settle()
        mean = 1 / max(1, held.records)  # no records: batches without any, of a group, with a weight of 0
        rows = rows_of(held.rows, mean)
        if held.gradients is not None:
            torch.mul(held.gradients, mean, out=self._sent)
        scale = float(self.param_groups[0]["lr"]) / self.ps.learning_rate
        is_pulled = held.unpulled >= self.pull_every
        before = self.ps.sequence
        try:
            if not scale:  # the first step of a scheduler that warms up: it applies nothing
                if is_pulled:
                    self.ps.pull()
                self.ps.session._note_pushed()
            elif is_pulled:
                self.ps.push_pull(scale=scale, rows=rows)
            else:
                self.ps.push(scale=scale, rows=rows)
        except self.ps.lost:
            return  # the tasks of this session are dispatched again
        finally:
            if self.ps.sequence != before or not scale:
                self._held = _Held(unpulled=0 if is_pulled else held.unpulled)
        if is_pulled:
            self._take()

    def _view(self) -> None:
        """Make the parameters and gradients of the model views of the arena, where they can be."""
        sent = self.ps.flat_gradients
        own = sent if self.push_every == 1 else np.zeros_like(sent)  # those that wait are pushed while the script has others in hand
        self._sent, self._gradients = torch.from_numpy(sent), torch.from_numpy(own)
        begins = {n: (g.ctypes.data - sent.ctypes.data) // sent.itemsize for n, g in self.ps.gradients.items()}
        self._own = {n: own[begins[n] : begins[n] + g.size].reshape(g.shape) for n, g in self.ps.gradients.items()}
        self._places = {n: (torch.from_numpy(self.ps.parameters[n]), torch.from_numpy(self._own[n])) for n in self._owners}
        self._held = _Held()
        self._lookups.clear()
        with torch.no_grad():
            for name, p in self._parameters():
                parameter, gradient = self._places[name]
                gradient.zero_()
                p.grad = None
                if p.device.type == "cpu" and p.is_contiguous() and p.dtype == torch.float32:
                    # Tensors of their own: share_memory() moves the memory of a tensor, with all that have it.
                    p.data = torch.from_numpy(self.ps.parameters[name])
                    p.grad = torch.from_numpy(self._own[name])
                else:
                    p.copy_(parameter)

    def _parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Iterate over the parameters that the model has now: a script can replace them, and move them to other memory."""
        for name, (module, own) in self._owners.items():
            p = module._parameters[own]
            if p is None:
                raise errors.InvalidError(
                    f"parameter {name!r}: expected it in the model, found none: make the optimizer of the model that is trained"
                )
            yield name, p

    def _gather(self) -> None:
        """Have the gradients in the arena, also of parameters that are no views of it."""
        self._settle()
        for name, p in self._parameters():
            place, gradient = self._places[name]
            if p.grad is None:
                gradient.zero_()
            elif p.grad.layout != torch.strided:
                raise errors.InvalidError(
                    f"parameter {name!r}: expected a dense gradient, found {p.grad.layout}: use tm.torch.Embedding, or sparse=False"
                )
            elif not _is_view(p.grad, gradient):
                gradient.copy_(p.grad)
            else:
                continue
            if _is_view(p, place):
                p.grad = torch.from_numpy(self._own[name])

    def _take(self) -> None:
        """Have the parameters of the arena in the model."""
        for name, p in self._parameters():
            place = self._places[name][0]
            if not _is_view(p, place):
                p.data.copy_(place)


def _is_view(t: torch.Tensor, place: torch.Tensor) -> bool:
    """Return whether a tensor is where the optimizer has put it. share_memory(), to() and scripts move tensors."""
    is_alike = t.layout == place.layout and t.dtype == place.dtype and t.shape == place.shape
    return is_alike and t.is_contiguous() and t.data_ptr() == place.data_ptr()
