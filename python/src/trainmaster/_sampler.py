"""The sampler of a loader: it draws batches from the tasks of the client, and reports what the loop has used."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from . import errors
from ._reader import Failure
from .account import Account, Batch, Need, Work
from .client import Client

if TYPE_CHECKING:
    from .torch._checkpoints import Checkpoints

log = logging.getLogger("trainmaster")

_PROGRESS = 1.0  # seconds between reports of progress
_LOGGED = 8  # failures of tasks that are logged, and then each with a number that is a power of 2


class Sampler:
    """See the module."""

    def __init__(self, client: Client, account: Account) -> None:
        """Make it. `account` is the account of this loader, whose batches it draws."""
        self.client, self.account = client, account
        self.checkpoints: Checkpoints | None = None  # of a job of explicit commits
        self.is_in_group = False  # of ranks that make each step together
        self.needs_commit = False  # the group must commit before the next task
        self.is_idle = False  # no rank of the group has records
        self.is_looking = False  # for `is_last`: a request that would wait for a task draws a marker, since a step must come first
        self.patience = 0.0  # seconds for which the next request of a group may wait for a task
        self.loss: float | None = None
        self._trained = 0  # records since the last report of progress
        self._reported = 0.0  # time of that report
        self._failed = 0  # tasks that failed
        self._has_traced = False  # a traceback is in the log
        client._on_stopped, client._of_loader = self._drop, self.finished

    def draw(self) -> Batch | None:
        """Return the next batch of addresses, None at the end of the job."""
        while True:
            drawn = self.account.draw()
            if not isinstance(drawn, Need):
                return drawn
            self._supply(drawn)

    def _supply(self, need: Need) -> None:
        """Get tasks for the account."""
        has_ended = self.is_idle and self.client._has_no_task
        if has_ended:
            self.client._end_steps()
        finished = self.finished(is_last=has_ended)
        may_not_wait = need.wait and bool(self.is_in_group or self._unapplied())
        patience, self.patience = self.patience, 0.0
        works: list[Work] | None = []
        try:
            client, want = self.client, need.want
            if may_not_wait:
                works = client._fetch_soon(finished, want, patience)
            elif self.is_looking:
                works = client._fetch(finished, want, wait=False)
            else:
                works, finished = client._fetch_next(self.finished, want, need.wait)
        except errors.CommitFirstError:
            if self.checkpoints is None:
                raise
            if self._commit():
                return
        self._note_reported(finished)  # after the reply: an exception may come at any time, and a repetition has no effect
        if works is None:
            self.account.end()
        elif works:
            self.account.give(works)
            self.client._forget(works[-1].id)
        elif may_not_wait or (need.wait and self.is_looking):
            if not (self.is_in_group or self.is_looking):
                self.require_applied()
            self.account.idle()
        else:
            self.account.dry()

    def _commit(self) -> bool:
        """Commit before the next task, unless the whole group must, or `is_last` must be true before a step."""
        if self.is_in_group:
            self.needs_commit = True
        elif not (self.is_looking and self._unapplied()):
            self.require_applied()
            assert self.checkpoints is not None
            self.checkpoints.commit()
            return True
        return False

    def _unapplied(self) -> Collection[int]:
        return () if self.checkpoints is None else self.checkpoints._unapplied

    def finished(self, is_last: bool = False) -> tuple[int, ...]:
        """Return tasks that are finished and not reported. A step must have applied all their records, but if no step follows (`is_last`)."""
        unapplied, client = self._unapplied(), self.client
        tasks = [t for t in (*client._held.finished, *self.account.finished) if t not in unapplied]
        return tuple(tasks) if is_last else client._stepped(tasks)

    def _note_reported(self, tasks: Sequence[int]) -> None:
        self.client._reported(tasks)
        self.account.reported(tasks)

    def require_applied(self) -> None:
        """Refuse to continue if the loop has used records that no step has applied."""
        if self._unapplied():
            raise errors.InvalidError(
                "checkpoints: expected optimizer.step() before the end of the pass, found batches without it: "
                "call it for each batch, or after several batches and if loader.is_last; or call applied() of the checkpoints"
            )

    def report_applied(self) -> None:
        """Report finished tasks whose records are applied, without a wait."""
        finished = self.finished()
        if finished:
            self.client._post("finish", finished=list(finished))
            self._note_reported(finished)

    def report_last(self) -> None:
        """Report finished tasks at the end of the loop, and wait until they are stored. A step may follow for the others."""
        finished = self.finished()
        if finished and not self.client.over:
            self.client._report_finished(finished)
            self._note_reported(finished)

    def keep(self) -> None:
        """Give the session the finished tasks that wait for a step."""
        unapplied, held = self._unapplied(), self.client._held
        finished = [t for t in self.account.finished if t not in unapplied]
        self.client._held = held._replace(finished=(*held.finished, *finished))
        self.account.reported(finished)

    def use(self) -> None:
        """Note that the loop has used the oldest batch."""
        batch, client = self.account.head, self.client
        if client._cuts:
            client._consumed(self.account.used(batch))
        if client._is_lost:
            return
        self.account.consume()
        if client._cuts:
            client._boundary(self.finished())
        else:  # the next request for tasks can be a task later
            with contextlib.suppress(errors.AgentLostError):  # the next request finds it
                self.report_applied()
        self._trained += batch.records
        now = time.monotonic()
        if self._trained and now - self._reported >= _PROGRESS:
            trained, self._trained, self._reported = self._trained, 0, now
            self.client.progress(trained, self.loss)

    def pass_over(self) -> None:
        """Consume a batch that the loop does not get: a marker, or records that were skipped."""
        if not self.account.flight:
            return
        counts = self.account.head.counts
        if self.checkpoints is not None and counts:
            self.checkpoints._skip(counts)
        self.use()

    def fail(self, failures: Sequence[Failure]) -> None:
        """Return tasks that failed in a reader to the queue. A job of explicit commits dispatches nothing before a rollback then."""
        for f in failures:
            if self.account.is_open(f.task):
                # A function that always fails would write its traceback for each attempt of each task.
                text = f.text if self._has_traced else "\n".join(filter(None, (f.text, f.trace)))
                self._failed += 1
                if self._failed <= _LOGGED or self._failed & (self._failed - 1) == 0:
                    log.error(
                        "a task failed, and is dispatched again unless it has failed too often: %s (failure %d in this process)", text, self._failed
                    )
                self._has_traced = self._has_traced or bool(f.trace)
                self.client._fail_work(f.task, f.text)  # first: after an exception, the loop reads the batch again and repeats it
                self.account.fail(f.task)
        if failures and self.client.explicit:
            raise errors.RolledBackError(f"a task failed, so start the script again from the last committed step: {failures[0].text}")

    def _drop(self, tasks: Sequence[int]) -> None:
        for task in tasks:
            self.account.fail(task)

    def restart(self) -> None:
        """Begin a new session: all tasks and batches are dropped, since they are dispatched again."""
        self.client._is_lost = True  # after an exception between these lines, the next loop begins another session
        self.account.reset()
        self.client._restart()
