"""The account of a loader: which records a batch has, and which tasks are finished.

The account is pure: it has no socket, clock or thread. A loader asks it for the next batch (`draw`), answers a `Need` with tasks
(`give`), with `dry` or with `end`, and reports that the loop has used a batch (`consume`).

Guarantees:

- Each record of a task that was given is in exactly one drawn batch, in the order of the task or of its permutation.
- A task is finished when all its records are consumed, and not before.
- A `Need` that waits is returned only if no batch with records is in flight and no batch is begun. torch draws ahead of what it
  yields, and the end of a pass waits for the tasks in flight: waiting with a batch in flight would be a deadlock.
- An exception between any two bytecodes loses no record and repeats none. Each method computes a new state and stores it in one
  step. After an exception, `redraw` makes `draw` return the batches in flight again.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ._check import whole

Chunk = Mapping[str, Any]
"""A chunk as the agent describes it. It goes back to the agent unchanged."""


class Work(NamedTuple):
    """A task as the agent gives it."""

    id: int
    pass_: int
    position: int  # of the task in the dataset, from 0
    base: int  # records that the loaded step has already
    chunks: tuple[Chunk, ...]

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(int(c["records"]) for c in self.chunks)

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Work:
        """Read a task of a reply of the agent."""
        return cls(fields["id"], fields.get("pass", 0), fields.get("index", 0), fields.get("base", 0), tuple(fields["chunks"]))


class Run(NamedTuple):
    """Records of one chunk of one task, in the order in which a batch has them.

    A batch of several shuffled tasks has the records of a chunk together.
    """

    task: int
    chunk: Chunk
    records: Sequence[int]
    following: Chunk | None = None  # of the same task, if the run begins its chunk and the next one comes after it


class Batch(NamedTuple):
    """A batch that was drawn. A batch without records is a marker: the loader drops it."""

    pass_: int = 0
    runs: tuple[Run, ...] = ()
    counts: Mapping[int, int] = {}  # task -> number of its records

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(self.counts.values())

    def without(self, task: int) -> Batch:
        """Return the batch without the records of a task."""
        counts = {t: n for t, n in self.counts.items() if t != task}
        return self._replace(runs=tuple(r for r in self.runs if r.task != task), counts=counts)


class Need(NamedTuple):
    """The account needs tasks. `wait`: no batch can be drawn before the answer has one."""

    wait: bool
    want: int


class _Source:
    """The records of a task in their order."""

    def __init__(self, work: Work, permute: random.Random | None) -> None:
        self.work = work
        self.starts = list(itertools.accumulate((int(c["records"]) for c in work.chunks), initial=0))
        self.records = self.starts[-1]
        self.order: list[int] | None = None
        if permute is not None:
            self.order = list(range(self.records))
            permute.shuffle(self.order)

    def runs(self, begin: int, end: int) -> list[Run]:
        """Return records `begin` to `end`, counted in the order of the task."""
        if self.order is None:
            return self._ordered(begin, end)
        runs: list[Run] = []
        first = last = 0  # numbers of the records of the chunk of the last run
        for at in self.order[begin:end]:
            if not first <= at < last:
                chunk = bisect.bisect_right(self.starts, at)
                first, last = self.starts[chunk - 1], self.starts[chunk]
                records: list[int] = []
                runs.append(Run(self.work.id, self.work.chunks[chunk - 1], records))
            records.append(at - first)
        return runs

    def locate(self, at: int) -> tuple[int, int]:
        """Return the chunk of a record, and its place there. `at` counts in the permutation of the task."""
        assert self.order is not None
        at = self.order[at]
        chunk = bisect.bisect_right(self.starts, at) - 1
        return chunk, at - self.starts[chunk]

    def _ordered(self, begin: int, end: int) -> list[Run]:
        runs = []
        while begin < end:
            chunk = bisect.bisect_right(self.starts, begin) - 1
            stop = min(end, self.starts[chunk + 1])
            first = self.starts[chunk]
            following = next(iter(self.work.chunks[chunk + 1 :]), None) if begin == first else None
            runs.append(Run(self.work.id, self.work.chunks[chunk], range(begin - first, stop - first), following))
            begin = stop
        return runs


_Pool = tuple[tuple[int, int], ...]
"""Tasks, each with the number of its records that are drawn."""


class _State(NamedTuple):
    """All that changes. A method replaces it as a whole."""

    last: int = 0  # largest id of a task that was given
    left: Mapping[int, int] = {}  # task -> records that are not consumed
    pool: _Pool = ()  # tasks with further records
    partial: Batch = Batch()
    flight: tuple[Batch, ...] = ()  # drawn and not consumed, in order
    sent: int = 0  # batches in flight that draw has returned since the last redraw
    finished: tuple[int, ...] = ()  # tasks whose finish is not reported
    drawn: int = 0  # number of batches, for the order between tasks
    consumed: int = 0  # number of batches, also of those that a reset dropped
    is_dry: bool = False  # the agent has no task now
    is_over: bool = False


class Account:
    """See the module."""

    def __init__(self, batch_size: int, window: int = 64, shuffle: int = 0, seed: int = 0) -> None:
        """Make an account.

        `window` is the number of tasks that may be open. `shuffle` is the number of tasks whose records are mixed; 0 keeps the order.
        """
        self.batch_size, self.window = whole("batch_size", batch_size, 1), whole("window", window, 1)
        self.shuffle, self.seed = min(shuffle, window), seed
        self._sources: dict[int, _Source] = {}
        self._state = _State()

    @property
    def finished(self) -> tuple[int, ...]:
        """Tasks that are finished and not reported. See `reported`."""
        return self._state.finished

    @property
    def head(self) -> Batch:
        """The oldest batch in flight: the batch that the loop has in hand."""
        return self._state.flight[0]

    @property
    def flight(self) -> tuple[Batch, ...]:
        """Batches that are drawn and not consumed, in order."""
        return self._state.flight

    @property
    def consumed(self) -> int:
        """Number of batches that are consumed or dropped: while it is the same, the oldest batch in flight is."""
        return self._state.consumed

    def works(self, is_exact: bool) -> list[Work]:
        """Tasks that are not finished, in the order in which they were given. If the job `is_exact`, they begin after the consumed records."""
        sources, left = self._sources, self._state.left
        return [sources[t].work._replace(base=sources[t].records - left[t]) if is_exact else sources[t].work for t in sorted(left)]

    @property
    def has_begun(self) -> bool:
        """Whether it has the numbers of tasks of a session."""
        return self._state.last > 0

    @property
    def open(self) -> int:
        """Number of tasks that are not finished."""
        return len(self._state.left)

    def draw(self) -> Batch | Need | None:
        """Return the next batch, or the tasks that it needs, or None at the end of the job."""
        s = self._state
        if s.sent < len(s.flight):
            self._state = s._replace(sent=s.sent + 1)
            return s.flight[s.sent]
        pool, batch = self._fill(s)
        partial = Batch()
        room = self.batch_size - batch.records
        is_closed = room == 0 or bool(batch.runs and pool and self._pass_of(pool) != batch.pass_)
        if not is_closed and not s.is_over and not s.is_dry and len(s.left) < self.window:
            self._state = s._replace(pool=pool, partial=batch)
            return Need(wait=not s.left, want=self._want(s, len(pool), room))
        if not is_closed and any(b.runs for b in s.flight):
            # With an empty batch, torch continues with the records in flight. When they are consumed, the master may have the next task.
            batch, partial = partial, batch
        elif not batch.runs:
            self._state = s._replace(pool=pool, partial=batch, is_dry=False)
            return None if s.is_over else Need(wait=True, want=1)
        self._state = s._replace(
            pool=pool, partial=partial, flight=(*s.flight, batch), sent=s.sent + 1, drawn=s.drawn + bool(batch.runs), is_dry=False
        )
        return batch

    def _pass_of(self, pool: _Pool) -> int:
        return self._sources[pool[0][0]].work.pass_

    def _want(self, s: _State, pooled: int, room: int) -> int:
        if self.shuffle > 1:
            return max(1, self.shuffle - pooled)
        largest = max((self._sources[t].records for t in s.left), default=room)
        return min(self.window - len(s.left), max(1, -(-room // max(1, largest))))

    def _fill(self, s: _State) -> tuple[_Pool, Batch]:
        """Move records from the pool to the batch that is begun, and return both."""
        if not s.pool:
            return s.pool, s.partial
        if self.shuffle > 1:
            return self._fill_mixed(s)
        pool, batch = list(s.pool), s.partial
        runs, n, pass_, counts = list(batch.runs), batch.records, batch.pass_, dict(batch.counts)
        while pool and n < self.batch_size:
            task, at = pool[0]
            source = self._sources[task]
            if n and source.work.pass_ != pass_:
                break
            pass_ = source.work.pass_
            end = min(source.records, at + self.batch_size - n)
            runs += source.runs(at, end)
            n += end - at
            counts[task] = counts.get(task, 0) + end - at
            if end == source.records:
                pool.pop(0)
            else:
                pool[0] = task, end
        return tuple(pool), Batch(pass_, tuple(runs), counts)

    def _fill_mixed(self, s: _State) -> tuple[_Pool, Batch]:
        """Do the same with records of several tasks of one pass, in random order.

        It waits for a pool of `shuffle` tasks, unless there are no more now.
        """
        if len(s.pool) < self.shuffle and not s.is_dry and not s.is_over and len(s.left) < self.window:
            return s.pool, s.partial
        batch = s.partial
        runs, n, counts = list(batch.runs), batch.records, dict(batch.counts)
        pass_ = batch.pass_ if n else (self._pass_of(s.pool) if s.pool else 0)
        now = [list(p) for p in s.pool if self._sources[p[0]].work.pass_ == pass_]
        later = [p for p in s.pool if self._sources[p[0]].work.pass_ != pass_]
        chance = random.Random(f"{self.seed}/{pass_}/{s.drawn}/{n}")
        left = [self._sources[task].records - at for task, at in now]
        found: dict[tuple[int, int], list[int]] = {}  # (task, chunk) -> records
        for picked in chance.sample(range(len(now)), min(self.batch_size - n, sum(left)), counts=left) if now else ():
            task, at = now[picked]
            chunk, record = self._sources[task].locate(at)
            found.setdefault((task, chunk), []).append(record)
            n += 1
            counts[task] = counts.get(task, 0) + 1
            now[picked][1] += 1
            left[picked] -= 1
            if not left[picked]:
                pooled = sum(map(bool, left)) + len(later)
                if pooled < self.shuffle and not s.is_dry and not s.is_over and len(s.left) < self.window:
                    break  # ask for another task first
        runs += (Run(task, self._sources[task].work.chunks[chunk], records) for (task, chunk), records in found.items())
        pool = tuple((task, at) for (task, at), n_left in zip(now, left) if n_left) + tuple(later)
        return pool, Batch(pass_, tuple(runs), counts)

    def give(self, tasks: Iterable[Work]) -> None:
        """Take tasks of a reply. A task that was given before is ignored."""
        s = self._state
        left, pool, finished, last = dict(s.left), list(s.pool), list(s.finished), s.last
        for work in tasks:
            if work.id <= last:
                continue
            last = work.id
            order = random.Random(f"{self.seed}/{work.pass_}/{work.position}") if self.shuffle else None
            source = _Source(work, order)
            if source.records > work.base:
                self._sources[work.id] = source
                left[work.id] = source.records - work.base
                pool.append((work.id, work.base))
            else:  # it has no records, or the loaded step has all of them
                finished.append(work.id)
        self._state = s._replace(last=last, left=left, pool=tuple(pool), finished=tuple(finished), is_dry=False)

    def dry(self) -> None:
        """Note that the agent has no task now."""
        self._state = self._state._replace(is_dry=True)

    def idle(self) -> None:
        """Let draw return a marker instead of a `Need` that waits: for a group, and for `is_last`."""
        s = self._state
        self._state = s._replace(flight=(*s.flight, Batch()), is_dry=False)

    def end(self) -> None:
        """Note that the job has ended. Records that are not drawn are dropped."""
        self._state = self._state._replace(is_over=True, pool=(), partial=Batch())

    def consume(self) -> None:
        """Note that the loop has used the oldest batch."""
        s = self._state
        left, finished = dict(s.left), list(s.finished)
        gone = []
        for task, n in s.flight[0].counts.items():
            left[task] -= n
            if not left[task]:
                del left[task]
                finished.append(task)
                gone.append(task)
        sent, consumed = max(0, s.sent - 1), s.consumed + 1
        self._state = s._replace(flight=s.flight[1:], sent=sent, left=left, finished=tuple(finished), consumed=consumed)
        for task in gone:
            self._sources.pop(task, None)

    def used(self, batch: Batch) -> dict[int, int]:
        """Number of records of each task of the oldest batch that are consumed with it, from the beginning of the task."""
        left = self._state.left
        return {task: self._sources[task].records - left[task] + n for task, n in batch.counts.items()}

    def reported(self, tasks: Iterable[int]) -> None:
        """Note that the agent knows that these tasks are finished."""
        known = set(tasks)
        self._state = self._state._replace(finished=tuple(t for t in self._state.finished if t not in known))

    def is_open(self, task: int) -> bool:
        """Whether a task is not finished."""
        return task in self._state.left

    def fail(self, task: int) -> None:
        """Drop a task that failed. Records of it in flight count for no task."""
        s = self._state
        if task not in s.left:
            return
        left = {t: n for t, n in s.left.items() if t != task}
        pool = tuple(p for p in s.pool if p[0] != task)
        flight = tuple(b.without(task) for b in s.flight)
        self._state = s._replace(left=left, pool=pool, partial=s.partial.without(task), flight=flight)
        self._sources.pop(task, None)

    def redraw(self, after: int = 0) -> None:
        """Let draw return the batches in flight once more, in order, but the first ones that `after` counts."""
        self._state = self._state._replace(sent=after)

    def reset(self) -> None:
        """Drop everything: the tasks are of a session that has ended."""
        self._state = _State(drawn=self._state.drawn, consumed=self._state.consumed + len(self._state.flight) + 1)
        self._sources = {}
