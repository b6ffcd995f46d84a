"""The loop of a rank of a group, whose ranks make each step together. torch/_group.py has the messages between the ranks."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .loader import Loader
    from .torch._group import Group

_PATIENCE = 0.1  # seconds that a rank waits for a task when no rank has one


class Agreed(NamedTuple):
    """What the ranks of a group agree on before a step: the sums over all ranks."""

    samples: int = 0
    ranks: int = 0  # with samples
    passes: int = 0  # of these ranks
    commits: int = 0  # ranks that need a commit
    ended: int = 0  # ranks whose job has ended
    examples: int = 0  # ranks that have nothing to make a dummy of
    stopped: int = 0  # ranks whose loop must end


class _Announced(NamedTuple):
    """A batch on which the group agrees."""

    samples: int
    data: Any
    session: int


class GroupLoop:
    """Gives each rank of the group as many batches, with a dummy for a rank that has no records.

    What the ranks agree on for the next step is begun before the loop gets the batch, so that it is there when the loop asks for the next one.
    """

    def __init__(self, loader: Loader, group: Group) -> None:
        """Make it for the loops of a loader."""
        self.group = group
        self.is_stopped = False  # a rank must end its loop, so all of them must
        self._loader = loader
        self._example: Any = None  # a batch, for dummies
        loader._sampler.is_in_group = True

    def batches(self, loop: int) -> Iterator[tuple[int, Any]]:
        """Iterate over (pass, data). `loop` is the number of the loop of the loader."""
        loader, group, sampler = self._loader, self.group, self._loader._sampler
        loader._commands.follow()  # the master knows what this rank evaluates before it asks for tasks
        now = self._announce()
        while (agreed := group.agreed()).ended < group.size:
            if agreed.stopped:
                self.is_stopped = True
                return
            if agreed.commits and sampler.checkpoints is not None:
                sampler.require_applied()
                sampler.checkpoints.commit()
                sampler.needs_commit = False
                loader.client._ask_again()
            sampler.is_idle = not agreed.samples
            if not agreed.samples:
                sampler.require_applied()
                if now.session == loader.client.session:
                    sampler.pass_over()
                sampler.patience = _PATIENCE
                now = self._announce()
                continue
            if agreed.examples:
                example = group.share(now.data if now.samples else None)
                self._example = example if self._example is None else self._example
            if now.samples and self._example is None:
                self._example = copy.deepcopy(now.data)  # the loop may change its batch
            data = now.data if now.samples else copy.deepcopy(self._example)
            after = self._announce(now)
            loader.weight = group.size * now.samples / agreed.samples
            yield from loader._give(agreed.passes // agreed.ranks, now.samples, data, now.session, loop)
            now = after

    def _announce(self, before: _Announced | None = None) -> _Announced:
        """Read the next batch, which is in flight after another one, and begin to agree on it."""
        loader, sampler = self._loader, self._loader._sampler
        loader._ahead = int(before is not None and before.session == loader.client.session)
        failures, samples, data = loader._result()
        try:
            sampler.fail(failures)
        except loader.client._lost:
            loader.client._is_lost = True
        flight = sampler.account.flight[loader._ahead :]
        if samples > 0 and not flight[0].runs:
            samples = 0  # its task has failed
        loader._commands.follow()
        self.group.begin(
            Agreed(
                samples=max(0, samples),
                ranks=int(samples > 0),
                passes=flight[0].pass_ if samples > 0 else 0,
                commits=int(sampler.needs_commit),
                ended=int(samples < 0),
                examples=int(samples <= 0 and self._example is None),
                stopped=int(loader._is_stopped),
            )
        )
        return _Announced(max(0, samples), data, loader.client.session)
