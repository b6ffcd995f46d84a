"""Embeddings whose rows are on the parameter servers of a job."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .. import errors
from ..ps import Array, Client, Table

log = logging.getLogger("trainmaster")

Parts = Mapping[str, Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.floating]]]]  # ids and their gradients, by table


class Embedding(torch.nn.Module):
    """A table of embeddings on the parameter servers: a row of `dim` numbers for each int64 id, without a bound and without a size.

    `name` is the name of the table in the job. An id has initial values until its first update: `init` is zeros, uniform (in [-scale, scale)) or
    normal. A row without an update in the last `expire_after` steps is removed. The update number `admit_after` of an id creates its row.

    `ParameterServerOptimizer` finds the embeddings of its model, and applies the gradients of all look-ups since its last step. Before it is made,
    a look-up is an error. Look-ups create no rows. The rows are no parameters: `state_dict` does not have them.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        expire_after: int | None = None,
        admit_after: int | None = None,
        *,
        init: str = "uniform",
        scale: float | None = None,
        seed: int = 0,
    ) -> None:
        """See the class."""
        super().__init__()
        self.table = Table(name, dim, init, scale, seed, expire_after, admit_after)
        self.table.settings("embedding")  # an error names the argument
        self._lookups: Lookups | None = None

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ids, of the shape of `ids` and then `dim`."""
        if not isinstance(ids, torch.Tensor):
            raise TypeError(f"embedding {self.table.name!r}: expected a tensor of ids, found {type(ids).__name__}: use torch.tensor(ids)")
        if ids.dtype != torch.int64:
            raise errors.InvalidError(f"embedding {self.table.name!r}: expected ids of type int64, found {ids.dtype}: convert them with ids.long()")
        if self._lookups is None:
            raise errors.InvalidError(
                f"embedding {self.table.name!r}: expected a ParameterServerOptimizer of the model, found none: make it before the first look-up"
            )
        return self._lookups.look_up(self.table, ids, is_trained=self.training)

    def extra_repr(self) -> str:
        """Describe the table."""
        return ", ".join(f"{k}={v!r}" for k, v in self.table._asdict().items() if v is not None)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the session out of copies and pickles."""
        return {**self.__dict__, "_lookups": None}


class Lookups:
    """The look-ups of a model, and the gradients of their rows since the last step."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Find the embeddings of a model."""
        self._found: dict[str, Embedding] = {}
        for module in model.modules():
            if isinstance(module, Embedding):
                name = module.table.name
                if name in self._found:
                    raise errors.InvalidError(
                        f"embedding {name!r}: expected a name that no other embedding of the model has: rename it, or use one module twice"
                    )
                self._found[name] = module
        self._lock = threading.Lock()  # of look-ups, which have one memory
        self._new: dict[str, list[tuple[npt.NDArray[np.int64], Array]]] = {}

    @property
    def tables(self) -> list[Table]:
        """The tables of the embeddings."""
        return [module.table for module in self._found.values()]

    def serve(self, ps: Client) -> None:
        """Let the embeddings look rows up."""
        self._ps = ps
        for module in self._found.values():
            module._lookups = self

    def look_up(self, table: Table, ids: torch.Tensor, is_trained: bool) -> torch.Tensor:
        """Return the rows of ids. Their gradients count when they are computed."""
        unique, inverse = torch.unique(ids.detach().cpu(), return_inverse=True)
        keys = unique.numpy()
        try:
            with self._lock:
                values = self._ps.lookup(table.name, keys)
        except self._ps.lost as e:
            if not (is_trained and torch.is_grad_enabled()):
                raise
            log.warning("the rows of embedding %r were not looked up, and the batch is dropped: %s", table.name, e)
            values = np.zeros((len(keys), table.dim), np.float32)  # the step applies nothing, and the batch is dispatched again
        rows = torch.from_numpy(values).to(ids.device)
        if torch.is_grad_enabled():
            rows.requires_grad_()
            rows.register_post_accumulate_grad_hook(functools.partial(self._add, table.name, keys))
        return torch.nn.functional.embedding(inverse.to(ids.device), rows)

    def _add(self, name: str, keys: npt.NDArray[np.int64], rows: torch.Tensor) -> None:
        """Note the gradients of a look-up. Its graph can have others later."""
        gradients, rows.grad = rows.grad, None
        if gradients is not None:
            self._new.setdefault(name, []).append((keys, gradients.detach().cpu().numpy()))

    def clear(self) -> None:
        """Drop the gradients since the last step."""
        self._new = {}

    @property
    def has_gradients(self) -> bool:
        """Whether there are gradients since the last step."""
        return any(self._new.values())

    def not_finite(self) -> str:
        """Describe a gradient since the last step that is not finite; "": there is none."""
        for name, found in self._new.items():
            for keys, gradients in found:
                if not np.isfinite(gradients).all():
                    row, element = np.argwhere(~np.isfinite(gradients))[0]
                    return f"gradient of table {name!r}: element {element} of id {keys[row]} is {gradients[row, element]}"
        return ""

    def added_to(self, parts: Parts, factor: float) -> Parts:
        """Return parts and the gradients since the last step, multiplied by a factor in float64, where they cannot overflow."""

        def scaled(gradients: Array) -> npt.NDArray[np.floating]:
            return gradients if factor == 1 else np.multiply(gradients, factor, dtype=np.float64)

        new = {name: [(keys, scaled(gradients)) for keys, gradients in found] for name, found in self._new.items()}
        return {name: [*parts.get(name, ()), *new.get(name, ())] for name in {**parts, **new}}


def rows_of(parts: Parts, factor: float = 1.0) -> dict[str, tuple[npt.NDArray[np.int64], Array]]:
    """Return ids and gradients of a push, multiplied by a factor. The client sums the gradients of an id."""

    def multiplied(gradients: list[npt.NDArray[np.floating]]) -> Array:
        product: npt.NDArray[np.floating] = np.concatenate(gradients) * factor
        return product.astype(np.float32, copy=False)

    return {name: (np.concatenate([k for k, _ in p]), multiplied([g for _, g in p])) for name, p in parts.items()}
