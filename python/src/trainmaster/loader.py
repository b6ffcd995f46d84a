"""Loaders of batches. `Loader` reads in this process and makes NumPy arrays; torch.DataLoader has worker processes.

Only the process of the loader decides. Its sampler draws batches as addresses (task, chunk, record), and a reader in this process or in a
worker turns them into data. The i-th batch that is drawn is the i-th that the loop receives.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import _check, errors
from ._check import functions, whole
from ._commands import Commands, Evaluate, termination
from ._reader import END, Decode, Reader, Result, stack
from ._sampler import Sampler
from .account import Account
from .client import DRAINED, LATE, LEAST_WINDOW, MEMBER_LOST, WINDOW, Client, waiting

if TYPE_CHECKING:
    from ._group import GroupLoop
    from .torch._checkpoints import Checkpoints
    from .torch._group import Group

log = logging.getLogger("trainmaster")

_LARGEST_SEED = 2**63 - 1  # the ranks of a group compare it as an int64
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class Epoch:
    """The batches of one pass. See `Loader.passes`."""

    def __init__(self, number: int, stream: _Stream) -> None:
        """Make it."""
        self.number, self._stream = number, stream

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of the pass."""
        while self._stream.now is not None and self._stream.now[0] == self.number:
            self._stream.loader._is_ahead = False
            yield self._stream.now[1]
            self._stream.advance()


class _Stream:
    """The batches of all passes, with the next one."""

    def __init__(self, loader: Loader) -> None:
        self.loader, self.batches = loader, loader._batches()
        self.now: tuple[int, Any] | None = None
        self.advance()

    def advance(self) -> None:
        self.now = next(self.batches, None)
        self.loader._is_ahead = True


class Loader:
    """Batches of a job, as NumPy arrays, read in this process.

    `paths` is the dataset: paths, globs and URLs. `decode(record)` turns a memoryview into a sample: a number, an array, or a tuple or dict of
    them; `collate` makes a batch of samples, and stacks them by default. `decode_batch(records)` makes a whole batch instead. Without both, a
    batch is a list of bytes. `shuffle` permutes the records of each task, and mixes those of `shuffle_window` tasks.

    `client` is an open client of the job. Without it, the loader makes a client with `addr`, `job`, `timeout` and `window`, and closes it.

    The loop runs to the end of the job. The length is not known. A batch may be shorter than `batch_size`: at the end of a pass, and
    while other trainers have all remaining tasks.
    """

    num_workers = 0
    """Number of worker processes."""

    weight = 1.0
    """Factor of the loss. In a group: such that the mean over the ranks is the mean over all samples; 0 for a dummy."""

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
        functions(decode=decode, decode_batch=decode_batch, collate=collate)
        _check.at_most_one(decode=decode, decode_batch=decode_batch)
        _check.at_most_one(collate=collate, decode_batch=decode_batch)
        _check.at_most_one(addr=addr, client=client)
        _check.at_most_one(job=job, client=client)
        if client is not None:
            _check.instance("client", client, Client, "a trainmaster.Client")
        names = None if paths is None else _check.paths("paths", paths)
        timeout, shuffle, seed = _check.seconds("timeout", timeout), _check.flag("shuffle", shuffle), whole("seed", seed, 0, _LARGEST_SEED)
        shuffle_window, window = whole("shuffle_window", shuffle_window, 1), whole("window", window, LEAST_WINDOW, WINDOW)
        if shuffle_window > 1 and not shuffle:
            raise errors.InvalidError(f"shuffle_window: expected shuffle=True with it, found shuffle_window={shuffle_window} without shuffle")
        self._functions = decode, decode_batch, collate or (list if decode is None else stack)
        self._keep = _chunks_to_keep(shuffle, shuffle_window, max(1, self.num_workers))
        account = Account(batch_size, window, shuffle_window if shuffle else 0, seed)
        self._owns = client is None
        self.client = client or (waiting() if addr is None and job is None else None) or Client(addr, job, timeout, window=window)
        if self.client._loader is not None and self.client._loader() is not None:
            raise errors.InvalidError("client: expected no other loader with it, found an open one: close the loader first, or make another client")
        if self.client.explicit and self.client._had_loader:
            raise errors.InvalidError(
                "client: expected a new client, since the job has explicit commits, found one whose loader is closed: close it and make another"
            )
        self.client._hand_over()  # what a loop over `tasks` has left
        account.window = min(account.window, self.client.window)
        account.shuffle = min(account.shuffle, account.window)
        self._is_exact = self.client.explicit or self.client._cuts  # positions in a task are what a step has applied
        if self._is_exact and shuffle:
            account.shuffle = 1
        self.account = account
        self._sampler = Sampler(self.client, account)
        self._commands = Commands(self.client, batch_size, self._reader)
        self._at_stop: list[Callable[[], None]] = []
        self._loop = 0
        self._is_ahead = False  # `passes` has read the next batch, and the script does not have it
        self._threads: dict[str, int] = {}  # the thread that is in the loop: a lock that an exception in this thread does not keep from it
        try:
            if names is not None and not self.client.over:
                self.client.report_dataset(names)
        except BaseException:
            self.close()
            raise
        self.client._loader = weakref.ref(self)

    @property
    def over(self) -> str:
        """Why the job, or the work of this trainer, has ended; empty before, and if the job has failed."""
        return self.client.over

    @property
    def group(self) -> Group | None:
        """The ranks that make each step together."""
        return None if self._group_loop is None else self._group_loop.group

    @property
    def checkpoints(self) -> Checkpoints | None:
        """What saves the model in a job of explicit commits. It sets itself."""
        return self._sampler.checkpoints

    @checkpoints.setter
    def checkpoints(self, checkpoints: Checkpoints | None) -> None:
        self._sampler.checkpoints = checkpoints

    def __iter__(self) -> Iterator[Any]:
        """Iterate over batches to the end of the job. A batch is consumed when the loop asks for the next one, or by `done`."""
        for _, data in self._batches():
            yield data

    def passes(self) -> Iterator[Epoch]:
        """Iterate over passes; each is iterated over to get its batches.

        The loop over the batches of a pass must not be left before its end, unless the loop over passes ends, too: by `stop`, or by `break`.
        """
        stream = _Stream(self)
        while stream.now is not None:
            if self._is_stopped and self._group_loop is None:
                stream.advance()  # without the batch that was read ahead
                continue
            number = stream.now[0]
            yield Epoch(number, stream)
            if stream.now is not None and stream.now[0] == number:
                if not self._is_stopped:
                    raise errors.InvalidError(
                        f"passes: expected a loop over all batches of pass {number}, found a loop that was left: "
                        "train all batches, or call loader.stop() to end the work of this trainer"
                    )
                stream.advance()

    def done(self) -> None:
        """Note that the batch in hand is trained, before the loop asks for the next one. A repetition has no effect."""
        if self._is_ahead:  # between two passes: the loop has no batch in hand
            return
        checkpoints = self.checkpoints
        if checkpoints is not None:
            checkpoints._end()
        if self._at == self.account.consumed and self.account.flight:  # otherwise it is consumed, or its task was dropped
            self._sampler.use()
        if checkpoints is not None and not self.client._is_lost:
            checkpoints._boundary()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, for checkpoints of the program's own: format, job and step."""
        return self._required().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a loaded model. It must be the last committed step of this job."""
        self._required().load_state_dict(state)

    def _required(self) -> Checkpoints:
        if self.checkpoints is None:
            raise errors.InvalidError("loader: expected Checkpoints of this loader, found none: they count the steps")
        return self.checkpoints

    def report(self, *, loss: float) -> None:
        """Report the loss of the batch in hand, for the status of the job."""
        self._sampler.loss = _check.number("loss", loss)

    def close(self) -> None:
        """Report what is finished, and end the session unless the client was given: then its next loader begins with the unfinished tasks."""
        if self.checkpoints is not None and not self.client.is_closed:
            try:
                self.checkpoints.finish()
            except self.client._lost as e:
                raise errors.RolledBackError(MEMBER_LOST) from e
        is_last = self.client._loader is not None and self.client._loader() is self
        if is_last:
            self._sampler.keep()
            self.client._report_at_end()
            self.client._give_back(self.account.works(self._is_exact))
        if self._owns:
            self.client.close()

    def __reduce__(self) -> Any:
        """Refuse to be copied."""
        raise TypeError("loader: expected it in the process that made it, found pickle or copy: give a worker process functions without the loader")

    def on_stop(self, function: Callable[[], None]) -> Callable[[], None]:
        """Call a function when this trainer must end before the job does: an operator drains it, or the process receives SIGTERM.

        The loop finishes the batch in hand, calls the function, and ends. Unfinished tasks return to the queue without a charge. The other ranks
        of a group end with RankStoppedError.
        """
        functions(on_stop=function)
        self._at_stop.append(function)
        return function

    def on_evaluate(self, function: Evaluate) -> Evaluate:
        """Call a function between two batches when an operator wants to know the figures of this model (`trainmaster trainers evaluate`).

        It receives an iterator over batches of held-out data, as the loop does, and returns the means over their records by name.
        """
        functions(on_evaluate=function)
        self._commands.evaluate = function
        return function

    def stop(self) -> None:
        """End the loop after the batch in hand, as a command of the master does. To end a group in order, call it on each rank in the same batch."""
        self._commands.stopped = self._commands.stopped or "stop() was called"

    @property
    def is_last(self) -> bool:
        """Whether there may be a wait, a commit or the end after the batch in hand: a loop that accumulates gradients must make a step."""
        if self.group is not None:
            agreed = self.group.agreed()
            return not agreed.samples or agreed.commits > 0 or agreed.stopped > 0
        if self._commands.stopped:
            return True
        if self._after is None and not self.client._is_lost:
            self._ahead = int(self._at == self.account.consumed)
            self._sampler.is_looking = True
            try:
                self._after = next(self._results, END)
            except self.client._lost:
                self.client._is_lost = True
            finally:
                self._sampler.is_looking = False
        return self._after is None or self._after[1] <= 0

    # What follows is for other modules of the package.

    _is_exact = False
    _group_loop: GroupLoop | None = None
    _has_left = False
    _results: Iterator[Result] = iter(())
    _after: Result | None = None  # read ahead of the loop
    _ahead = 0  # batches in flight that were read before the one that is being read
    _at = -1  # number of batches before the batch in hand; -1: it is not in flight

    @property
    def _is_stopped(self) -> bool:
        """Whether this trainer must end before the job does."""
        return bool(self._commands.stopped and not self.client.over) or self.client.over == DRAINED

    def _reader(self) -> Reader:
        """Return a reader with the functions of this loader."""
        return Reader(self.client._path, *self._functions, self._keep)

    def _read(self) -> Iterator[Result]:
        """Iterate over what a reader has made of the drawn batches, in order."""
        reader = self._reader()
        while (batch := self._sampler.draw()) is not None:
            yield reader.read(batch.runs)

    def _result(self) -> Result:
        """Return the next result of `_read`, after a restart if the session was lost."""
        while True:
            try:
                if self.client._is_lost:
                    raise errors.SessionLostError("the session has ended")
                return next(self._results, END)
            except self.client._lost:
                self._sampler.restart()
                self._results, self._ahead = self._read(), 0

    def _batches(self) -> Iterator[tuple[int, Any]]:
        """Iterate over (pass, data) of the batches with data, to the end of the job or of the work of this trainer."""
        self.client._require_open("loop")
        with self._one_thread():
            termination.begin(self._commands)
        batches = self._until_end()
        try:
            while True:
                with self._one_thread():
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch
        finally:
            batches.close()
            termination.end(self._commands)

    @contextlib.contextmanager
    def _one_thread(self) -> Iterator[None]:
        """Refuse to continue while another thread is in the loop."""
        thread = threading.get_ident()
        if self._threads.setdefault("in the loop", thread) != thread:
            raise RuntimeError("loader: expected a loop in one thread, found another thread in it: make a loader, with a client, for each thread")
        try:
            yield
        finally:
            self._threads.clear()

    def _until_end(self) -> Generator[tuple[int, Any]]:
        self._loop = loop = self._loop + 1
        if self._has_left:
            return
        if self.checkpoints is not None:
            self.checkpoints._resume()
            if self.checkpoints._last_used == self.account.consumed and self.account.flight:
                self._sampler.use()  # the model has it
        if self.group is not None:
            self.group.settle()
        self.account.redraw()  # what an earlier loop was given and did not ask past
        self._is_ahead = False
        self._results, self._after = self._read(), None
        before = self.account.consumed
        yield from self._alone(loop) if self._group_loop is None else self._group_loop.batches(loop)
        if self.client.over not in {"", LATE} and self.account.consumed == before:
            log.warning(
                "%s: this loop has no batches. A loop has the batches of all passes: "
                "set their number with --passes of the master, or tm.local(passes=N)",
                self.client.over,
            )
        self._results = iter(())  # ends the workers
        if self._is_stopped if self._group_loop is None else self._group_loop.is_stopped:
            self._leave()
        self._sampler.report_last()

    def _alone(self, loop: int) -> Iterator[tuple[int, Any]]:
        while not self._commands.follow():
            after, self._after = self._after, None
            self._ahead = 0
            try:
                failures, samples, data = self._result() if after is None or self.client._is_lost else after
                self._sampler.fail(failures)
            except self.client._lost:
                self.client._is_lost = True
                continue
            if samples < 0:
                return
            batch = self.account.head
            if samples and batch.runs:
                yield from self._give(batch.pass_, samples, data, self.client.session, loop)
            else:
                self._sampler.pass_over()

    def _give(self, pass_: int, samples: int, data: Any, session: int, loop: int) -> Iterator[tuple[int, Any]]:
        """Give the loop a batch, and consume it."""
        is_current = session == self.client.session and bool(self.account.flight)
        counts = self.account.head.counts if is_current else {}
        self.client._records_in_hand, self._at = samples, self.account.consumed if is_current else -1
        self.client._note_use(counts)
        if self.checkpoints is not None:
            self.checkpoints._begin(counts)
        yield pass_, data
        self.client._require_open("loop")
        if loop != self._loop:
            raise RuntimeError("loader: expected one loop at a time, found a newer one: end the first loop before the second")
        self.done()

    def _leave(self) -> None:
        """End the work of this trainer: the loop has used its last batch."""
        self._store()
        if not self._is_stopped:  # another rank of the group is
            if self.client.over:
                return
            raise errors.RankStoppedError(
                "group: another rank was stopped, and this rank cannot make a step without it: start the ranks again, as torchrun does"
            )
        self._has_left = True
        self._sampler.keep()
        self._commands.stopped = self.client.over = reason = self._commands.stopped or self.client.over
        self.account.reset()
        self.account.end()
        log.warning("%s: the loop ends before the job. Unfinished tasks return to the queue without a charge", reason)
        for function in self._at_stop:
            function()

    def _store(self) -> None:
        """Commit the last step, and report finished tasks."""
        try:
            if self.checkpoints is not None:
                self.checkpoints.commit()
            self._sampler.report_last()
        except self.client._lost as e:
            if self.client.explicit:
                raise errors.RolledBackError(MEMBER_LOST) from e
            log.warning("the agent or its session was lost: finished tasks that were not reported return to the queue, too")


def _chunks_to_keep(shuffle: bool, window: int, readers: int) -> int:
    """Return the number of chunks that a reader keeps mapped. Each has a descriptor in its process, and in the agent, which serves all readers."""
    if not shuffle:
        return 8
    return min(32 * window, max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4 // readers))
