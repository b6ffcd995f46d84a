"""Ranks of torch.distributed that make each step together, and agree on it while the step before it runs."""

from __future__ import annotations

import struct
from typing import Any

import torch
import torch.distributed as dist

from .._group import Agreed

_SUMS = struct.Struct(f"{len(Agreed._fields)}q")


class Group:
    """A process group of the loader's own, on gloo: its messages do not mix with those of the training step."""

    def __init__(self, group: Any) -> None:
        """Make it. All ranks of `group` do it at the same time."""
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError("group: expected an initialized process group, found none: call torch.distributed.init_process_group first")
        ranks = dist.get_process_group_ranks(group)
        if dist.get_rank() not in ranks:
            raise ValueError(f"group: expected rank {dist.get_rank()} in it, found {ranks}: make the loader on its ranks only")
        self._ranks = ranks
        self._group: Any = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        self.rank, self.size = ranks.index(dist.get_rank()), len(ranks)
        # The numbers of a step are written into the memory of one tensor, and the group is asked directly: a new tensor, and the checks of
        # dist.all_reduce, take more time than the messages take from a step.
        self._memory = bytearray(_SUMS.size)
        self._sums = [torch.frombuffer(self._memory, dtype=torch.int64)]
        self._options = dist.AllreduceOptions()  # of a sum
        self._work: Any = None
        self._agreed = Agreed()

    def begin(self, mine: Agreed) -> None:
        """Begin to agree on the next step."""
        self.settle()
        _SUMS.pack_into(self._memory, 0, *mine)
        self._work = self._group.allreduce(self._sums, self._options)

    def agreed(self) -> Agreed:
        """Wait for the others, and return the sums. Repeated calls return the same."""
        self.settle()
        return self._agreed

    def settle(self) -> None:
        """Wait for what was begun."""
        if self._work is not None:
            self._wait(self._work.wait)
            self._agreed, self._work = Agreed(*_SUMS.unpack_from(self._memory)), None

    def share(self, data: Any) -> Any:
        """Return the data of the lowest rank that has some."""
        first = torch.tensor(self.size if data is None else self.rank)
        self._wait(lambda: dist.all_reduce(first, dist.ReduceOp.MIN, group=self._group))
        shared = [data]
        self._wait(lambda: dist.broadcast_object_list(shared, self._ranks[int(first)], self._group))
        return shared[0]

    def number(self, mine: int) -> int:
        """Return the number of rank 0, when all ranks have called it."""
        return self._sum(mine if self.rank == 0 else 0)

    def any(self, mine: bool) -> bool:
        """Return whether it is true on any rank."""
        return self._sum(int(mine)) > 0

    def _sum(self, mine: int) -> int:
        self.settle()
        number = torch.tensor(mine, dtype=torch.int64)
        self._wait(lambda: dist.all_reduce(number, group=self._group))
        return int(number)

    def _wait(self, operation: Any) -> None:
        try:
            operation()
        except RuntimeError as e:
            raise RuntimeError(f"group: another rank has ended or has left the loop: start all ranks again ({e})") from e
