"""Commands to a loader: of the master, to stop and to evaluate the model; and SIGTERM."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import _check, errors
from ._reader import Reader
from .account import Account, Batch, Work
from .client import DRAINED, Client, shortened

log = logging.getLogger("trainmaster")

_PERIOD = 1.0  # seconds between looks for commands of the master
_SOON = 0.02  # seconds between them in a round of evaluation, whose tasks come one after the other
Evaluate = Callable[[Iterator[Any]], Mapping[str, float]]


class Commands:
    """The commands to one loader. `client` looks for them, too, while there is no task."""

    def __init__(self, client: Client, batch_size: int, reader: Callable[[], Reader]) -> None:
        """Make them. `reader` makes a reader for evaluations, whose batches have `batch_size` records."""
        self.stopped = ""  # why the loop must end before the job does
        self.is_terminated = False  # a SIGTERM has come while the loop runs
        self.evaluate: Evaluate | None = None
        self._client, self._batch_size, self._reader = client, batch_size, reader
        self._looked = 0.0
        self._period = _PERIOD
        self._measured = -math.inf  # time of the last evaluation
        self._skipped = 0  # records that decode has left out in it
        client._while_waiting = self.follow
        client._on_restart.append(self._announce)

    def follow(self) -> bool:
        """Follow the commands of the master, and return whether the loop must end."""
        now = time.monotonic()
        if self.stopped or now - self._looked < self._period:
            return bool(self.stopped)
        self._looked = now
        try:
            is_drained, tasks = self._client._commands(self.evaluate is not None)
            if is_drained:
                self.stopped = DRAINED
                return True
            for work in tasks:
                self._report(work.id, self._measure(work))
                self._measured = time.monotonic()
            self._client._pause = self._period = _SOON if time.monotonic() - self._measured < _PERIOD else _PERIOD
        except errors.OverError:
            pass
        except self._client._lost:
            self._client._is_lost = True
        return bool(self.stopped)

    def _announce(self) -> None:
        """Report that this process evaluates, before the first request for tasks of a further session: it would end a round of this trainer."""
        if self.evaluate is not None and self._client._while_waiting == self.follow:
            with contextlib.suppress(errors.OverError):
                self._client._commands(evaluates=True)

    def _report(self, task: int, result: dict[str, Any]) -> None:
        try:
            self._client._call("evaluated", task=task, **result)
        except errors.InvalidError as e:
            log.error("the result of the evaluation is refused: %s", e)  # noqa: TRY400 it is the user's value
            self._client._call("evaluated", task=task, error=shortened(str(e)))

    def _measure(self, work: Work) -> dict[str, Any]:
        """Evaluate the model on a task, and return the fields of the result. An error is for the operator: the training goes on."""
        if self.evaluate is None:  # an earlier loader of this client has one
            return {"error": "the loader has no function on_evaluate"}
        try:
            self._skipped = 0
            batches = self._batches(work)
            first = list(itertools.islice(batches, 1))
            if not first:  # decode has skipped all records: there is nothing of which a function could return the mean
                return {"metrics": {}, "records": 0}
            found = self.evaluate(itertools.chain(first, batches))
            if not isinstance(found, Mapping):
                raise TypeError(f"on_evaluate: expected a dict of means by name, found {found!r}")
            metrics = {str(name): _check.number(f"on_evaluate: {name}", value) for name, value in found.items()}
            for name, value in metrics.items():
                if not math.isfinite(value):
                    return {"not_finite": name}
            return {"metrics": metrics, "records": work.records - self._skipped}
        except self._client._lost:
            raise
        except Exception as e:
            log.exception("the evaluation of the model failed")
            return {"error": shortened(f"{type(e).__name__}: {e}")}

    def _batches(self, work: Work) -> Iterator[Any]:
        """Iterate over the batches of a task, and count the records that are left out."""
        account, reader = Account(self._batch_size), self._reader()
        account.give([work])
        while account.open:
            batch = account.draw()
            if not isinstance(batch, Batch):
                account.dry()  # there is only this task
                continue
            failures, samples, data = reader.read(batch.runs)
            if failures:
                raise errors.Error(failures[0].text)
            self._skipped += batch.records - samples
            if samples:
                yield data
            account.consume()


class Termination:
    """Lets SIGTERM end the loops of this process after the batch in hand, instead of the process."""

    def __init__(self) -> None:
        """Make it. A process has one."""
        self._running: list[Commands] = []  # of loaders with a loop
        self._pid = 0

    def begin(self, loop: Commands) -> None:
        """Handle the signal while the loop of a loader runs, unless the script does."""
        self._running = [*self._running, loop]
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._pid = os.getpid()
            signal.signal(signal.SIGTERM, self._handle)

    def end(self, loop: Commands) -> None:
        """Note the end of the loop."""
        self._running = [r for r in self._running if r is not loop]

    def _handle(self, *_: object) -> None:
        """Stop the loops. A second signal, or a signal outside of a loop, ends the process."""
        running = [r for r in self._running if not r.is_terminated]
        if not running or os.getpid() != self._pid:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        for r in running:
            r.stopped, r.is_terminated = r.stopped or "SIGTERM", True


termination = Termination()
