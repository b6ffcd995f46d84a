"""The account: each record in one batch, tasks finished when all is consumed, no wait while a batch is in flight."""

from __future__ import annotations

import random
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster import account as module
from trainmaster.account import Account, Batch, Need, Work


def work(number: int, sizes: list[int], pass_: int = 1, base: int = 0) -> Work:
    chunks = tuple({"path": f"f{number}", "offset": i, "records": n} for i, n in enumerate(sizes))
    return Work(number, pass_, number, base, chunks)


def addresses(batch: Batch) -> list[tuple[int, int, int]]:
    return [(r.task, r.chunk["offset"], at) for r in batch.runs for at in r.records]


def expected(w: Work) -> list[tuple[int, int, int]]:
    return [(w.id, c["offset"], at) for c in w.chunks for at in range(c["records"])][w.base :]


class History:
    """A loader around an account, with an agent that gives tasks pass by pass, sometimes none for a while."""

    def __init__(self, account: Account, passes: list[list[Work]], depth: int, seed: int) -> None:
        self.account, self.passes, self.depth = account, [list(p) for p in passes], depth
        self.random = random.Random(seed)
        self.held: set[int] = set()
        self.ended: set[int] = set()
        self.consumed: list[tuple[int, int, int]] = []
        self.positions: dict[int, tuple[int, int]] | None = {}  # consumed records, with those of base, and all records; None: not checked
        self.batches: list[Batch] = []
        self.queue: list[Batch] = []  # what torch has drawn
        self.lost: dict[int, int] = {}
        self.inbox: list[Work] = []
        self.barrier = self.random.random() < 0.7  # a pass ends when all its tasks are finished; else passes overlap

    def answer(self, need: Need) -> None:
        """Answer a need as client._fetch does."""
        if need.wait:
            assert not any(b.runs for b in self.account.flight), "it waits while a batch is in flight"
            assert not self.account._state.partial.runs, "it waits while it holds a part of a batch"
        finished = self.account.finished
        for number in finished:
            assert number in self.held or number in self.ended
            self.held.discard(number)
            self.ended.add(number)
        self.account.reported(finished)
        while self.passes and not self.passes[0] and not (self.barrier and self.held) and not self.inbox:
            self.passes.pop(0)
        if not self.passes and not self.inbox and not self.held:
            self.account.end()
            return
        if not self.inbox and self.passes and (need.wait or self.random.random() < 0.7):
            for _ in range(min(need.want, len(self.passes[0]))):
                w = self.passes[0].pop(0)
                self.held.add(w.id)
                self.inbox.append(w)
        if self.inbox:
            if self.positions is not None:
                self.positions |= {w.id: (w.base, sum(int(c["records"]) for c in w.chunks)) for w in self.inbox}
            self.account.give(self.inbox)
            self.inbox = []
            return
        assert not need.wait or self.held, "nothing to wait for"
        if need.wait and not any(self.passes):
            assert not self.held, f"the account waits while tasks {self.held} are not finished: the pass never ends"
        self.account.dry()

    def draw(self) -> Batch | None:
        for _ in range(10000):
            drawn = self.account.draw()
            if not isinstance(drawn, Need):
                return drawn
            self.answer(drawn)
        raise AssertionError("the account asks for ever")

    def run(self) -> None:
        """As torch does it: draw up to depth batches, yield the oldest, draw another one."""
        end = False
        while True:
            while not end and len(self.queue) < self.depth:
                batch = self.draw()
                if batch is None:
                    end = True
                else:
                    self.queue.append(batch)
            if not self.queue:
                return
            batch = self.queue.pop(0)
            if not end:  # torch draws the next one before it yields
                more = self.draw()
                if more is None:
                    end = True
                else:
                    self.queue.append(more)
            assert batch == self.account.head
            if self.random.random() < 0.05:  # the loop is left and begun again
                self.account.redraw()
                self.queue, end = [], False
                continue
            if batch.runs:
                self.batches.append(batch)
                self.consumed += addresses(batch)
            if self.positions is not None:
                self.check_positions(batch, self.positions)
            self.account.consume()

    def check_positions(self, batch: Batch, positions: dict[int, tuple[int, int]]) -> None:
        """The parameters include the base of a task and what was consumed of it: cuts have these positions."""
        used = {task: positions[task][0] + n for task, n in batch.counts.items()}
        assert self.account.used(batch) == used
        positions |= {task: (n, positions[task][1]) for task, n in used.items()}


sizes = st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=8)


@settings(max_examples=400, deadline=None)
@given(st.lists(sizes, max_size=3), st.integers(1, 12), st.integers(1, 8), st.integers(0, 3), st.integers(1, 5), st.integers(0, 1 << 30))
def test_each_record_is_consumed_once(passes: list[list[list[int]]], size: int, window: int, shuffle: int, depth: int, seed: int) -> None:
    chance, number, works = random.Random(seed), 0, []
    for p, tasks in enumerate(passes):
        now = []
        for chunks in tasks:
            number += 1
            now.append(work(number, chunks, p + 1, chance.choice([0, 0, sum(chunks) // 2, sum(chunks)])))
        works.append(now)
    account = Account(size, window, shuffle, seed)
    history = History(account, works, depth, seed)
    history.run()
    every = [w for p in works for w in p]
    # Under a permutation, base leaves out the first records in its order.
    assert Counter(a[0] for a in history.consumed) == Counter({w.id: len(expected(w)) for w in every if expected(w)})
    assert len(set(history.consumed)) == len(history.consumed)
    if not shuffle:
        assert history.consumed == [a for w in every for a in expected(w)]
    assert history.ended | set(account.finished) == {w.id for w in every}
    for batch in history.batches:
        assert batch.records <= size
        assert {next(w.pass_ for w in every if w.id == r.task) for r in batch.runs} == {batch.pass_}


def test_order_within_a_task_depends_on_seed_pass_and_index_only() -> None:
    def order(size: int, window: int, seed: int) -> list[tuple[int, int, int]]:
        account = Account(size, window, 1, seed)
        history = History(account, [[work(1, [5, 6, 7]), work(2, [9])]], 1, 0)
        history.run()
        return [a for a in history.consumed if a[0] == 1]

    assert order(4, 8, 7) == order(3, 1, 7)
    assert order(4, 8, 7) != order(4, 8, 8)
    assert order(4, 8, 7) != sorted(order(4, 8, 7))


def test_short_batch_only_without_another_task() -> None:
    account = Account(10)
    need = account.draw()
    assert need == Need(wait=True, want=1)
    account.give([work(1, [4])])
    assert isinstance(account.draw(), Need)
    account.give([work(2, [4])])
    need = account.draw()
    assert isinstance(need, Need)
    assert not need.wait
    account.dry()
    batch = account.draw()
    assert isinstance(batch, Batch)
    assert batch.records == 8
    assert isinstance(account.draw(), Need)
    account.dry()
    assert account.draw() == Batch()  # a marker: the batch in flight may bring the next task
    account.consume()
    account.consume()
    assert set(account.finished) == {1, 2}


def test_failed_task_leaves_the_batches() -> None:
    account = Account(4)
    account.draw()
    account.give([work(1, [6]), work(2, [6])])
    first, second, third = account.draw(), account.draw(), account.draw()
    assert [b.counts for b in (first, second, third) if isinstance(b, Batch)] == [{1: 4}, {1: 2, 2: 2}, {2: 4}]
    account.fail(1)
    account.fail(1)
    assert list(account._sources) == [2]
    assert [b.counts for b in account.flight] == [{}, {2: 2}, {2: 4}]
    for _ in range(3):
        account.consume()
    assert account.finished == (2,)


def test_failed_task_leaves_the_batch_that_is_begun() -> None:
    account = Account(10)
    account.draw()
    account.give([work(1, [4]), work(2, [3])])
    assert isinstance(account.draw(), Need)
    account.fail(1)
    account.dry()
    batch = account.draw()
    assert isinstance(batch, Batch)
    assert (batch.counts, batch.records, {r.task for r in batch.runs}) == ({2: 3}, 3, {2})


def test_works_that_are_not_finished() -> None:
    account = Account(4)
    account.draw()
    works = [work(1, [4]), work(2, [6]), work(3, [1])]
    account.give(works)
    for _ in range(2):
        account.draw()
        account.consume()
    assert account.works(is_exact=False) == works[1:]
    assert account.works(is_exact=True) == [works[1]._replace(base=4), works[2]]


def test_task_that_was_given_is_ignored() -> None:
    account = Account(4)
    account.give([work(1, [2])])
    account.give([work(1, [2]), work(2, [2])])
    assert account.open == 2


@pytest.mark.parametrize(("size", "window"), [(0, 1), (-3, 1), (1, 0)])
def test_bad_sizes_are_refused(size: int, window: int) -> None:
    with pytest.raises(ValueError, match="expected a whole number of at least 1, found"):
        Account(size, window)


class Interrupt(BaseException):
    """As Ctrl-C."""


def interrupted_history(at: int, shuffle: int) -> bool:
    """Run a history in which the at-th instruction of the account raises. Return whether it came so far."""
    account = Account(4, 3, shuffle, 5)
    works = [[work(1, [3, 4]), work(2, [5])], [work(3, [3, 4]), work(4, [5])]]
    history = History(account, works, 2, 0)
    history.positions = None  # an interrupt can come after a batch was consumed and before it is noted here
    history.random.random = lambda: 0.5  # type: ignore[method-assign]
    count, raised = 0, False

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count, raised
        if frame.f_code.co_filename != module.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not raised:
            count += 1
            if count == at:
                raised = True
                raise Interrupt
        return trace

    while True:
        try:
            sys.settrace(trace)
            history.run()
            break
        except Interrupt:
            pass
        finally:
            sys.settrace(None)
        if history.batches and account.flight and account.head == history.batches[-1]:  # the batch in hand was not consumed
            again = history.batches.pop()
            del history.consumed[len(history.consumed) - again.records :]
        history.queue = []
        account.redraw()
    every = [a for p in works for w in p for a in expected(w)]
    assert sorted(history.consumed) == sorted(every), at
    assert history.ended | set(account.finished) == {1, 2, 3, 4}, at
    return raised


@pytest.mark.parametrize("shuffle", [0, 2])
def test_interrupt_at_any_instruction_loses_and_repeats_nothing(shuffle: int) -> None:
    interrupted_history(sys.maxsize, shuffle)  # Python 3.12 reports instructions from the second run on
    at = 1
    while interrupted_history(at, shuffle):
        at += 7 if at > 300 else 1
    assert at > 1000
