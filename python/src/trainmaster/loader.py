"""Loaders of batches. `Loader` reads in this process and makes NumPy arrays; torch.DataLoader has worker processes.

Only the process of the loader decides. It draws batches as addresses (task, chunk, record), and a reader in this process or in a worker
turns them into data. The i-th batch that is drawn is the i-th that the loop receives.
"""

from __future__ import annotations

import collections
import copy
import logging
import math
import os
import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from . import errors
from ._agent import Chunks
from .account import Account, Batch, Need, Over, Run, Work
from .client import DRAINED, WINDOW, Client, shortened, waiting

log = logging.getLogger("trainmaster")

_PROGRESS = 1.0  # seconds between reports of progress
_COMMANDS = 1.0  # seconds between looks for commands of the master
_PATIENCE = 0.1  # seconds that a rank waits for a task when no rank has one
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Decode = Callable[[memoryview], Any]
Fail = Callable[..., None]
Evaluate = Callable[[Iterator[Any]], Mapping[str, float]]


class _Skip:
    """The type of SKIP."""

    def __repr__(self) -> str:
        return "trainmaster.SKIP"

    def __reduce__(self) -> str:
        return "SKIP"


SKIP = _Skip()
"""Return value of `decode` for a record that is consumed without being in a batch."""


class Failure:
    """A task that failed in a reader: number, text for the master, text for the log."""

    def __init__(self, task: int, text: str, trace: str) -> None:
        """Make it."""
        self.task, self.text, self.trace = task, text, trace


Result = tuple[tuple[Failure, ...], int, Any]
"""What a reader has made of a batch: failures, number of samples, data. The number is -1 at the end of the job."""

_END: Result = (), -1, None


class Reader:
    """Turns addresses into data, in any process. It can be pickled if its functions can be."""

    def __init__(
        self, path: str, decode: Decode | None, decode_batch: Callable[[list[memoryview]], Any] | None, collate: Callable[[list[Any]], Any], keep: int
    ) -> None:
        """Make a reader. `keep` is the number of chunks that stay mapped."""
        self.decode, self.decode_batch, self.collate, self.keep = decode, decode_batch, collate, keep
        self.chunks = Chunks(path)
        self._pid = 0
        self._mapped: collections.OrderedDict[tuple[str, int], list[memoryview]] = collections.OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the mapped chunks out."""
        return {**self.__dict__, "_pid": 0, "_mapped": collections.OrderedDict()}

    def records(self, run: Run) -> list[memoryview]:
        """Return the records of a run."""
        if self._pid != os.getpid():
            self._pid, self._mapped = os.getpid(), collections.OrderedDict()
        key = run.chunk["path"], run.chunk["offset"]
        mapped = self._mapped.get(key)
        if mapped is None:
            mapped = self._mapped[key] = self.chunks.read(run.chunk)
            while len(self._mapped) > self.keep:
                self._mapped.popitem(last=False)
        else:
            self._mapped.move_to_end(key)
        return [mapped[i] for i in run.records]

    def read(self, runs: Sequence[Run]) -> Result:
        """Return failures, the number of samples, and the data of the records that remain."""
        failures: list[Failure] = []
        bad: set[int] = set()

        def fail(task: int, text: str, trace: str = "") -> None:
            bad.add(task)
            failures.append(Failure(task, text, trace))

        found: list[tuple[Run, list[memoryview]]] = []
        for run in runs:
            if run.task not in bad:
                try:
                    found.append((run, self.records(run)))
                except errors.AgentLostError:
                    raise
                except errors.Error as e:
                    fail(run.task, str(e))
        if self.decode_batch is None:
            items = self._decode(found, bad, fail)
            return tuple(failures), len(items), self.collate(items) if items else None
        good = self._good(found, bad)
        if not good:
            return tuple(failures), 0, None
        try:
            return tuple(failures), len(good), self.decode_batch(good)
        except Exception:
            if not self._blame(found, bad, fail):
                raise  # it fails only for all of them together: no task is to blame
        good = self._good(found, bad)
        return tuple(failures), len(good), self.decode_batch(good) if good else None

    def _decode(self, found: list[tuple[Run, list[memoryview]]], bad: set[int], fail: Fail) -> list[Any]:
        items: list[tuple[int, Any]] = []
        for run, records in found:
            for at, record in zip(run.records, records):
                if run.task in bad:
                    break
                try:
                    item = bytes(record) if self.decode is None else self.decode(record)
                except Exception as e:  # noqa: BLE001 it is the user's function
                    where = f"{run.chunk['path']}: chunk at {run.chunk['offset']}, record {at}"
                    fail(run.task, f"{where}: decode: {type(e).__name__}: {e}", traceback.format_exc())
                    break
                if item is not SKIP:
                    items.append((run.task, item))
        return [item for task, item in items if task not in bad]

    def _good(self, found: list[tuple[Run, list[memoryview]]], bad: set[int]) -> list[memoryview]:
        return [r for run, records in found if run.task not in bad for r in records]

    def _blame(self, found: list[tuple[Run, list[memoryview]]], bad: set[int], fail: Fail) -> bool:
        """Find the tasks for whose records alone decode_batch fails."""
        assert self.decode_batch is not None
        before = len(bad)
        for run, records in found:
            if run.task not in bad:
                try:
                    self.decode_batch(records)
                except Exception as e:  # noqa: BLE001 it is the user's function
                    where = f"{run.chunk['path']}: chunk at {run.chunk['offset']}, records {run.records[0]} to {run.records[-1]}"
                    fail(run.task, f"{where}: decode_batch: {type(e).__name__}: {e}", traceback.format_exc())
        return len(bad) > before


class Epoch:
    """The batches of one pass. See `Base.passes`."""

    def __init__(self, number: int, stream: _Stream) -> None:
        """Make it."""
        self.number, self._stream = number, stream

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of the pass."""
        while self._stream.now is not None and self._stream.now[0] == self.number:
            yield self._stream.now[1]
            self._stream.advance()


class _Stream:
    """The batches of all passes, with the next one."""

    def __init__(self, batches: Iterator[tuple[int, Any]]) -> None:
        self.batches = batches
        self.now: tuple[int, Any] | None = None
        self.advance()

    def advance(self) -> None:
        self.now = next(self.batches, None)


class Commits(Protocol):
    """What saves the model in a job of explicit commits."""

    @property
    def unapplied(self) -> Collection[int]:
        """Tasks with records that the loop has used, and no step has applied."""

    @property
    def ended(self) -> int:
        """Number of batches before the last one that the loop has used."""

    def resume(self) -> None:
        """Note that the loop begins again. A batch that was left after its step is used."""

    def begin(self, counts: Mapping[int, int]) -> None:
        """Note that the loop has a new batch, with these numbers of records of tasks."""

    def end(self) -> None:
        """Note that the loop has used the batch."""

    def skip(self, counts: Mapping[int, int]) -> None:
        """Note records that the loop does not get: they need no step."""

    def boundary(self) -> None:
        """Begin or continue to save: the batch is consumed."""

    def commit(self) -> None:
        """Save and commit now."""

    def finish(self, limit: float | None = None) -> None:
        """Wait until the step that is being saved is committed."""

    def settle(self) -> None:
        """Wait until no thread of it runs."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a position."""


class Agreed(NamedTuple):
    """What the ranks of a group agree on before a step: the sums over all ranks."""

    samples: int = 0
    ranks: int = 0  # with samples
    passes: int = 0  # of these ranks
    commits: int = 0  # ranks that need a commit
    ended: int = 0  # ranks whose job has ended
    examples: int = 0  # ranks that have nothing to make a dummy of
    stopped: int = 0  # ranks whose loop must end


class Group(Protocol):
    """Ranks that make each step together."""

    rank: int
    size: int

    def begin(self, mine: Agreed) -> None:
        """Begin to agree on the next step."""

    def agreed(self) -> Agreed:
        """Wait for the others, and return the sums. Repeated calls return the same."""

    def settle(self) -> None:
        """Wait for what was begun."""

    def share(self, data: Any) -> Any:
        """Return the data of the lowest rank that has some."""

    def number(self, mine: int) -> int:
        """Return the number of rank 0, when all ranks have called it."""

    def any(self, mine: bool) -> bool:
        """Return whether it is true on any rank."""


class _Termination:
    """Lets SIGTERM end the loops of this process after the batch in hand, instead of the process."""

    def __init__(self) -> None:
        self.running: list[Base] = []  # loaders with a loop
        self.pid = 0

    def begin(self, loader: Base) -> None:
        """Handle the signal while the loop of a loader runs, unless the script does."""
        self.running = [*self.running, loader]
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self.pid = os.getpid()
            signal.signal(signal.SIGTERM, self.handle)

    def end(self, loader: Base) -> None:
        """Note the end of the loop."""
        self.running = [r for r in self.running if r is not loader]

    def handle(self, *_: object) -> None:
        """Stop the loops. A second signal, or a signal outside of a loop, ends the process."""
        waiting = [r for r in self.running if not r.stopped]
        if not waiting or os.getpid() != self.pid:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        for r in waiting:
            r.stopped = "SIGTERM"


_termination = _Termination()


class Base:
    """What the loaders have in common."""

    commits: Commits | None = None
    _has_left = False
    stopped = ""  # why the loop must end before the job does
    group: Group | None = None
    weight = 1.0
    """Factor of the loss. In a group: such that the mean over the ranks is the mean over all samples; 0 for a dummy."""

    def __init__(
        self,
        paths: Paths | None,
        *,
        batch_size: int,
        shuffle: bool,
        shuffle_window: int,
        seed: int,
        client: Client | None,
        addr: str | None,
        job: str | None,
        timeout: float,
        window: int,
    ) -> None:
        """See the subclasses."""
        if shuffle_window < 1:
            raise ValueError(f"shuffle_window: expected at least 1 task, found {shuffle_window}")
        account = Account(batch_size, window, shuffle_window if shuffle else 0, seed)
        self._owns = client is None
        self.client = client or (waiting() if addr is None and job is None else None) or Client(addr, job, timeout, window=window)
        account.window = min(account.window, self.client.window)
        account.shuffle = min(account.shuffle, account.window)
        if (self.client.explicit or self.client.cuts) and shuffle:  # positions in a task are what a step has applied
            account.shuffle = 1
        self.account = account
        self.client.on_stopped = self._dropped
        self.client.while_waiting = self._obey
        self._at_stop: list[Callable[[], None]] = []
        self._evaluate: Evaluate | None = None
        self._asked = 0.0
        self._turn = 0
        self._trained = 0
        self._loss: float | None = None
        self._told = 0.0
        try:
            if paths is not None and not self.client.over:
                self.client.report_dataset(paths)
        except BaseException:
            self.close()
            raise

    @property
    def over(self) -> str:
        """Why the job has ended; empty while it has not."""
        return self.client.over

    def __iter__(self) -> Iterator[Any]:
        """Iterate over batches to the end of the job. A batch is consumed when the loop asks for the next one, or by `done`."""
        for _, data in self._batches():
            yield data

    def passes(self) -> Iterator[Epoch]:
        """Iterate over passes; each is iterated over to get its batches."""
        stream = _Stream(self._batches())
        while stream.now is not None:
            yield Epoch(stream.now[0], stream)

    def done(self) -> None:
        """Note that the batch in hand is trained, before the loop asks for the next one."""
        self._consume()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, for checkpoints of the program's own: format, job and step."""
        return self._commits().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a loaded model. It must be the last committed step of this job."""
        self._commits().load_state_dict(state)

    def _commits(self) -> Commits:
        if self.commits is None:
            raise errors.InvalidError("loader: expected Checkpoints of this loader, found none: they count the steps")
        return self.commits

    def report(self, *, loss: float) -> None:
        """Report the loss of the batch in hand, for the status of the job."""
        self._loss = float(loss)

    def close(self) -> None:
        """Report what is finished and end the session, unless the client was given."""
        if self.commits is not None and not self.client.is_closed:
            self.commits.finish()
        if self._owns:
            if self._finished() and not self.client.is_closed and not self.client.over:
                try:
                    self.client.report_finished(self._finished())
                except (errors.Error, TimeoutError) as e:
                    log.warning("finished tasks at the end: %s", e)
            self.client.close()

    def on_stop(self, function: Callable[[], None]) -> Callable[[], None]:
        """Call a function when this trainer must end before the job does: an operator drains it, or the process receives SIGTERM.

        The loop finishes the batch in hand, calls the function, and ends. Unfinished tasks return to the queue without a charge.
        """
        self._at_stop.append(function)
        return function

    def on_evaluate(self, function: Evaluate) -> Evaluate:
        """Call a function between two batches when an operator wants to know the figures of this model (`trainmaster trainers evaluate`).

        It receives an iterator over batches of held-out data, as the loop does, and returns the means over their records by name.
        """
        self._evaluate = function
        return function

    def stop(self) -> None:
        """End the loop after the batch in hand, as a command of the master does."""
        self.stopped = self.stopped or "stop() was called"

    def _obey(self) -> bool:
        """Follow the commands of the master, and return whether the loop must end."""
        now = time.monotonic()
        if self.stopped or now - self._asked < _COMMANDS:
            return bool(self.stopped)
        self._asked = now
        try:
            drained, tasks = self.client.commands(self._evaluate is not None)
            if drained:
                self.stopped = DRAINED
                return True
            for work in tasks:
                self._report_evaluation(work.id, self._measured(work))
        except errors.OverError:
            pass
        except self.client.lost:
            self.client.is_lost = True
        return bool(self.stopped)

    def _report_evaluation(self, task: int, result: dict[str, Any]) -> None:
        try:
            self.client.call("evaluated", task=task, **result)
        except errors.InvalidError as e:
            log.error("the result of the evaluation is refused: %s", e)  # noqa: TRY400 it is the user's value
            self.client.call("evaluated", task=task, error=shortened(str(e)))

    def _measured(self, work: Work) -> dict[str, Any]:
        """Evaluate the model on a task, and return the fields of the result. An error is for the operator: the training goes on."""
        assert self._evaluate is not None
        held_out = Account(self.account.batch_size)
        held_out.give([work])
        try:
            metrics = dict(self._evaluate(self._held_out(held_out)))
            for name, value in metrics.items():
                if not math.isfinite(value):
                    return {"not_finite": name}
            return {"metrics": {str(k): float(v) for k, v in metrics.items()}, "records": sum(int(c["records"]) for c in work.chunks)}
        except self.client.lost:
            raise
        except Exception as e:
            log.exception("the evaluation of the model failed")
            return {"error": shortened(f"{type(e).__name__}: {e}")}

    def _held_out(self, account: Account) -> Iterator[Any]:
        reader = self._reader()
        while account.open:
            batch = account.draw()
            if not isinstance(batch, Batch):
                account.dry()  # there is only this task
                continue
            failures, samples, data = reader.read(batch.runs)
            if failures:
                raise errors.DecodeError(failures[0].text)
            if samples:
                yield data
            account.consume()

    def _reader(self) -> Reader:
        """Return a reader with the functions of this loader."""
        raise NotImplementedError

    def _leave(self) -> None:
        """End the work of this trainer: the loop has used its last batch."""
        self._has_left = True
        if self.commits is not None:
            self.commits.commit()
        self._last_finishes()
        self.stopped = self.client.over = reason = self.stopped or self.client.over
        self.account.reset()
        self.account.end(reason)
        log.warning("%s: the loop ends before the job. Unfinished tasks return to the queue without a charge", reason)
        for function in self._at_stop:
            function()

    def _dropped(self, tasks: Sequence[int]) -> None:
        for task in tasks:
            self.account.fail(task)

    def _draw(self) -> Batch | None:
        """Return the next batch of addresses, None at the end of the job."""
        while True:
            drawn = self.account.draw()
            if isinstance(drawn, Batch):
                return drawn
            if isinstance(drawn, Over):
                return None
            self._supply(drawn)

    def _supply(self, need: Need) -> None:
        """Get tasks for the account."""
        finished = self._finished()
        is_bound = need.wait and bool(self.group is not None or self._unapplied())  # it must not wait for a task
        patience, self._patience = self._patience, 0.0
        works: list[Work] | None = []
        try:
            client, want = self.client, need.want
            works = client.fetch_soon(finished, want, patience) if is_bound else client.fetch(finished, want, need.wait)
        except errors.CommitFirstError:
            if self.commits is None:
                raise
            if self.group is None:
                self._require_applied()
                self.commits.commit()
                return
            self._needs_commit = True
        self.account.reported(finished)  # after the reply: an exception may come at any time, and a repetition has no effect
        if works is None:
            self.account.end(self.client.over)
        elif works:
            self._give(works)
        elif is_bound:
            if self.group is None:
                self._require_applied()
            self.account.idle()
        else:
            self.account.dry()

    def _unapplied(self) -> Collection[int]:
        return () if self.commits is None else self.commits.unapplied

    def _finished(self) -> tuple[int, ...]:
        """Tasks that are finished and not reported. A step must have applied all their records."""
        unapplied = self._unapplied()
        return tuple(t for t in self.account.finished if t not in unapplied)

    def _require_applied(self) -> None:
        if self._unapplied():
            raise errors.InvalidError(
                "checkpoints: expected optimizer.step() before the end of the pass, found batches without it: "
                "call it for each batch, or after several batches and if loader.is_last; or call applied() of the checkpoints"
            )

    def report_applied(self) -> None:
        """Report finished tasks whose records are applied, before a step is saved."""
        finished = self._finished()
        if finished:
            self.client.note("finish", finished=list(finished))

    def _give(self, works: list[Work]) -> None:
        self.account.give(works)
        self.client.taken(works[-1].id)

    def _consume(self) -> None:
        """Consume the batch in hand. An exception may come at any time, and a repetition has no effect."""
        if self.commits is not None:
            self.commits.end()
        if self._at == self.account.consumed and self.account.flight:  # otherwise it is consumed, or its task was dropped
            self._use()
        if self.commits is not None and not self.client.is_lost:
            self.commits.boundary()

    def _use(self) -> None:
        batch = self.account.head
        self.client.consumed(self.account.used(batch), self.account.ends(batch))
        if self.client.is_lost:
            return
        self.account.consume()
        self.client.boundary(self._finished())
        self._trained += batch.records
        now = time.monotonic()
        if self._trained and now - self._told >= _PROGRESS:
            trained, self._trained, self._told = self._trained, 0, now
            self.client.progress(trained, self._loss)

    def _pass_over(self) -> None:
        """Consume a batch that the loop does not get: a marker, or records that were skipped."""
        if not self.account.flight:
            return
        counts = self.account.head.counts()
        if self.commits is not None and counts:
            self.commits.skip(counts)
        self._use()

    def _failed(self, failures: Sequence[Failure]) -> None:
        for f in failures:
            if self.account.fail(f.task):
                log.error("a task failed and returns to the queue: %s", "\n".join(filter(None, (f.text, f.trace))))
                self.client.fail_work(f.task, f.text)

    def _restart(self) -> None:
        """Begin a new session: all tasks and batches are dropped, since they are dispatched again."""
        self.client.is_lost = True  # after an exception between these lines, the next loop begins another session
        self.account.reset()
        self.client.restart()

    def _read(self) -> Iterator[Result]:
        """Iterate over what the reader has made of the drawn batches, in order."""
        raise NotImplementedError

    def _batches(self) -> Iterator[tuple[int, Any]]:
        """Iterate over (pass, data) of the batches with data, to the end of the job or of the work of this trainer."""
        _termination.begin(self)
        try:
            yield from self._until_end()
        finally:
            _termination.end(self)

    def _until_end(self) -> Iterator[tuple[int, Any]]:
        self._turn = turn = self._turn + 1
        if self.commits is not None:
            self.commits.resume()
            if self.commits.ended == self.account.consumed and self.account.flight:
                self._use()  # the model has it
        if self.group is not None:
            self.group.settle()
        self.account.redraw()  # what an earlier loop was given and did not ask past
        self._results, self._after = self._read(), None
        yield from self._alone(turn) if self.group is None else self._together(turn, self.group)
        self._results = iter(())  # ends the workers
        if not self._has_left and ((self.stopped and not self.client.over) or self.client.over == DRAINED):
            self._leave()
        self._last_finishes()

    def _result(self) -> Result:
        while True:
            try:
                if self.client.is_lost:
                    raise errors.SessionLostError("the session has ended")
                return next(self._results, _END)
            except self.client.lost:
                self._restart()
                self._results, self._ahead = self._read(), 0

    def _hand(self, pass_: int, data: Any, session: int, turn: int) -> Iterator[tuple[int, Any]]:
        """Give the loop a batch, and consume it."""
        is_current = session == self.client.session and bool(self.account.flight)
        counts = self.account.head.counts() if is_current else {}
        self.client.in_hand, self._at = sum(counts.values()), self.account.consumed if is_current else -1
        if self.commits is not None:
            self.commits.begin(counts)
        yield pass_, data
        if turn != self._turn:
            raise RuntimeError("loader: expected one loop at a time, found a newer one: end the first loop before the second")
        self._consume()

    def _alone(self, turn: int) -> Iterator[tuple[int, Any]]:
        while not self._obey():
            after, self._after = self._after, None
            self._ahead = 0
            try:
                failures, samples, data = self._result() if after is None or self.client.is_lost else after
                self._failed(failures)
            except self.client.lost:
                self.client.is_lost = True
                continue
            if samples < 0:
                return
            batch = self.account.head
            if samples and batch.runs:
                yield from self._hand(batch.pass_, data, self.client.session, turn)
            else:
                self._pass_over()

    def _together(self, turn: int, group: Group) -> Iterator[tuple[int, Any]]:
        """Give each rank of the group as many batches, with a dummy for a rank that has no records.

        What the ranks agree on for the next step is begun before the loop gets the batch, so that it is there when the loop asks for the next one.
        """
        now = self._announce(group)
        while (agreed := group.agreed()).ended < group.size:
            if agreed.stopped:
                self.stopped = self.stopped or "another rank was stopped"
                return
            if agreed.commits and self.commits is not None:
                self._require_applied()
                self.commits.commit()
                self._needs_commit = False
                self.client.ask_again()
            if not agreed.samples:
                self._require_applied()
                if now.session == self.client.session:
                    self._pass_over()
                self._patience = _PATIENCE
                now = self._announce(group)
                continue
            if agreed.examples:
                example = group.share(now.data if now.samples else None)
                self._example = example if self._example is None else self._example
            if now.samples and self._example is None:
                self._example = copy.deepcopy(now.data)  # the loop may change its batch
            data = now.data if now.samples else copy.deepcopy(self._example)
            after = self._announce(group, now)
            self.weight = group.size * now.samples / agreed.samples
            yield from self._hand(agreed.passes // agreed.ranks, data, now.session, turn)
            now = after

    def _announce(self, group: Group, before: _Announced | None = None) -> _Announced:
        """Read the next batch, which is in flight after another one, and begin to agree on it."""
        self._ahead = int(before is not None and before.session == self.client.session)
        failures, samples, data = self._result()
        try:
            self._failed(failures)
        except self.client.lost:
            self.client.is_lost = True
        flight = self.account.flight[self._ahead :]
        if samples > 0 and not flight[0].runs:
            samples = 0  # its task has failed
        group.begin(
            Agreed(
                max(0, samples),
                int(samples > 0),
                flight[0].pass_ if samples > 0 else 0,
                int(self._needs_commit),
                int(samples < 0),
                int(samples <= 0 and self._example is None),
                int(self._obey()),
            )
        )
        return _Announced(max(0, samples), data, self.client.session)

    def _last_finishes(self) -> None:
        finished = self._finished()
        if finished and not self.client.over:
            self.client.report_finished(finished)
        self.account.reported(self.account.finished)

    @property
    def is_last(self) -> bool:
        """Whether there may be a wait, a commit or the end after the batch in hand: a loop that accumulates gradients must make a step."""
        if self.group is not None:
            agreed = self.group.agreed()
            return not agreed.samples or agreed.commits > 0
        if self._after is None and not self.client.is_lost:
            self._ahead = int(self._at == self.account.consumed)
            try:
                self._after = next(self._results, _END)
            except self.client.lost:
                self.client.is_lost = True
        return self._after is None or self._after[1] <= 0

    _results: Iterator[Result] = iter(())
    _after: Result | None = None  # read ahead of the loop
    _ahead = 0  # batches in flight that were read before the one that is being read
    _example: Any = None  # a batch, for dummies
    _needs_commit = False
    _patience = 0.0  # seconds for which the next request may wait for a task
    _at = -1  # number of batches before the batch in hand; -1: it is not in flight


class _Announced(NamedTuple):
    """A batch on which the group agrees."""

    samples: int
    data: Any
    session: int


class Loader(Base):
    """Batches of a job, as NumPy arrays, read in this process.

    `paths` is the dataset: paths, globs and URLs. `decode(record)` turns a memoryview into a sample: a number, an array, or a tuple or dict of
    them; the samples of a batch are stacked. `decode_batch(records)` makes a whole batch instead. Without both, a batch is a list of bytes.
    `shuffle` permutes the records of each task, and mixes those of `shuffle_window` tasks.
    """

    def __init__(
        self,
        paths: Paths | None = None,
        *,
        decode: Decode | None = None,
        decode_batch: Callable[[list[memoryview]], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        shuffle_window: int = 1,
        seed: int = 0,
        client: Client | None = None,
        addr: str | None = None,
        job: str | None = None,
        timeout: float = 600,
        window: int = WINDOW,
    ) -> None:
        """See the class."""
        check_decode(decode, decode_batch)
        super().__init__(
            paths,
            batch_size=batch_size,
            shuffle=shuffle,
            shuffle_window=shuffle_window,
            seed=seed,
            client=client,
            addr=addr,
            job=job,
            timeout=timeout,
            window=window,
        )
        self._functions = decode, decode_batch, collate or (list if decode is None else stack)
        self._keep = chunks_to_keep(shuffle, shuffle_window)

    def _reader(self) -> Reader:
        return Reader(self.client.path, *self._functions, self._keep)

    def _read(self) -> Iterator[Result]:
        reader = self._reader()
        while (batch := self._draw()) is not None:
            yield reader.read(batch.runs)


def chunks_to_keep(shuffle: bool, window: int) -> int:
    """Return the number of chunks that a reader keeps mapped. Each has a descriptor."""
    return min(32 * window, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4) if shuffle else 8


def check_decode(decode: object, decode_batch: object) -> None:
    """Refuse both functions together."""
    if decode is not None and decode_batch is not None:
        raise ValueError("decode, decode_batch: expected one of them, found both")


def stack(items: list[Any]) -> Any:
    """Stack samples: arrays and numbers to an array, tuples and dicts by their parts."""
    import numpy as np  # noqa: PLC0415 it is an extra

    first = items[0]
    if isinstance(first, tuple):
        return tuple(stack([item[i] for item in items]) for i in range(len(first)))
    if isinstance(first, dict):
        return {key: stack([item[key] for item in items]) for key in first}
    if isinstance(first, (str, bytes)):
        return items
    return np.stack([np.asarray(item) for item in items])
