"""A DataLoader over the tasks of a job. torch's DataLoader has the worker processes, and the account in this process decides."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import inspect
import io
import mmap
import multiprocessing
import multiprocessing.connection
import operator
import os
import pickle
import select
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.reduction import ForkingPickler
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import default_collate
from torch.utils.data._utils import signal_handling

from .. import errors
from .._check import at_most_one, functions, whole
from .._group import GroupLoop
from .._reader import Decode, Reader, Result
from ..account import Run
from ..client import WINDOW, Client
from ..loader import Loader, Paths
from ._group import Group

_RETRIES = 3  # of the same batch, after workers that died
_END_OF_WORKER = 0.5  # seconds: the sockets of a worker close before it counts as dead
_INLINE = 256 << 10  # largest number of bytes of content in a message: for 1 MiB, a descriptor takes less time
_PIPE = 1 << 20  # bytes of the pipe of the workers, the default of pipe-max-size in Linux
_OTHER_PAGES = 3  # of a message: its length, its other content, and its last page
_AGAIN = 0.2  # seconds between signals to a main thread that has not noticed


class WorkerDiedError(RuntimeError):
    """A worker process of a DataLoader has died."""


class _Dataset:
    """What torch's workers read: addresses in, data out."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __getitems__(self, runs: tuple[Run, ...]) -> Result | None:
        try:
            return self.reader.read(runs)
        except errors.AgentLostError:
            return None

    def __getitem__(self, index: object) -> Any:
        raise TypeError(f"dataset: expected the sampler of trainmaster.torch.DataLoader, found index {index!r}: use trainmaster.torch.DataLoader")

    def __len__(self) -> int:
        raise TypeError("dataset: the number of records is not known before the end: use trainmaster.torch.DataLoader")


def _same(result: Any) -> Any:
    return result


class _Pickler(ForkingPickler):
    """Pickles tensors as torch does, but for storages that fit: their content, instead of a descriptor of shared memory that needs a connection."""

    def __init__(self, file: io.BytesIO, room: int) -> None:
        super().__init__(file)  # with the protocol of torch's workers: another one makes NumPy arrays that cannot be written
        self._room = room

    def reducer_override(self, value: Any) -> Any:
        """Return how a storage is pickled here."""
        # Also shared ones: default_collate makes them in a worker.
        if type(value) is torch.UntypedStorage and value.device.type == "cpu" and 0 < value.nbytes() <= self._room:
            self._room -= value.nbytes()
            return _storage, (torch.empty(0, dtype=torch.uint8).set_(value).numpy().tobytes(),)
        return NotImplemented


def _storage(content: bytes) -> torch.UntypedStorage:
    """Return a storage with this content."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).untyped_storage()


class _Packed:
    """A result of a worker, which is pickled when it is made. It is unpickled as the result."""

    def __init__(self, result: Any, room: int) -> None:
        pickled = io.BytesIO()
        _Pickler(pickled, room).dump(result)
        self._pickled = pickled.getvalue()

    def __reduce__(self) -> Any:
        return pickle.loads, (self._pickled,)


def _room(messages: int) -> int:
    """Return how many bytes of content each of these messages can have, such that a pipe has room for all of them.

    A worker in the middle of a message would wait there for a loop that trains, or for ever if the script is killed.
    """
    reader, writer = os.pipe()
    try:
        pages = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE) // mmap.PAGESIZE
    except OSError:  # this user has too many large pipes
        return 0
    finally:
        os.close(reader)
        os.close(writer)
    return min(_INLINE, max(0, pages // messages - _OTHER_PAGES) * mmap.PAGESIZE)


_send_in_parts = multiprocessing.connection.Connection._send_bytes  # type: ignore[attr-defined]


def _send_at_once(connection: Any, content: Any) -> None:
    if len(content) > _PIPE:
        _send_in_parts(connection, content)
    else:
        connection._send(struct.pack("!i", len(content)) + content)


def _begin_worker(parent: int, begin: Callable[[int], None] | None, number: int) -> None:
    """Let this worker send the length of a message with its content. A reader would wait for ever for the content of a worker that was killed.

    torch's worker ends when its parent is another process than at its own start: too late for a script that was killed before.
    """
    if parent and os.getppid() != parent:
        os._exit(1)
    multiprocessing.connection.Connection._send_bytes = _send_at_once  # type: ignore[attr-defined]
    if begin is not None:
        begin(number)


class _Watch:
    """Interrupts the main thread in `next` when a worker has died.

    torch's own handler of SIGCHLD raises wherever the main thread is, also in the training step. This one raises only while `next` runs. It is
    needed: a worker that is killed while it writes a message leaves the reader of the queue waiting forever. Workers of a fork server are
    no children of this process, so a thread waits for their end and sends the signal.
    """

    def __init__(self) -> None:
        self.sentinels: list[int] = []
        self._workers: Sequence[Any] = ()  # whose sentinels these are
        self._poll = select.poll()
        self.iterator: Any = None
        self.is_armed = False
        self.is_set = False
        self.starting = 0  # loaders whose workers start: torch has their process ids, and would raise for them
        self._lock = threading.Lock()  # a loader may be in any thread

    def install(self) -> None:
        """Set the handler, once, if this is the main thread. torch's handler is called after it, except while workers start."""
        if self.is_set or threading.current_thread() is not threading.main_thread():
            return
        signal_handling._set_SIGCHLD_handler()
        before = signal.getsignal(signal.SIGCHLD)

        def handle(number: int, frame: FrameType | None) -> None:
            self.check()
            if callable(before) and not self.starting:
                before(number, frame)

        signal.signal(signal.SIGCHLD, handle)
        self.is_set = True

    @contextlib.contextmanager
    def start(self) -> Iterator[None]:
        """Note that the workers of a loader start."""
        with self._lock:
            self.starting += 1
        try:
            yield
        finally:
            with self._lock:
                self.starting -= 1

    def arm(self, iterator: Any) -> None:
        """Let the end of a worker of torch's iterator interrupt the main thread. It may have come before."""
        if self._workers is not iterator._workers:  # once, not for each batch
            self.sentinels, self._poll = [w.sentinel for w in iterator._workers], select.poll()
            for sentinel in self.sentinels:
                self._poll.register(sentinel, select.POLLIN)
            self._workers = iterator._workers
        self.iterator = iterator
        self.is_armed = True
        self.check()

    def check(self) -> None:
        """Raise an error if `next` runs and a worker has died."""
        # At its end, the iterator itself ends the workers.
        if self.is_armed and not self.iterator._shutdown and self._poll.poll(0):
            self.is_armed = False
            raise WorkerDiedError("a worker of the DataLoader has died")

    def poke(self, workers: Sequence[Any]) -> None:
        """Send the signal for workers that are no children of this process, until all of them have ended."""
        main, running = threading.main_thread(), [w.sentinel for w in workers]
        while running:
            died = multiprocessing.connection.wait(running)
            while self.is_armed and main.ident is not None and any(d in self.sentinels for d in died):
                signal.pthread_kill(main.ident, signal.SIGCHLD)
                time.sleep(_AGAIN)
            running = [r for r in running if r not in died]


_watch = _Watch()


def _freeze() -> None:
    """Let workers keep the garbage of this process. Its destructors can wait for threads that a fork does not copy, as a process group does."""
    if _watch.starting:
        gc.freeze()


os.register_at_fork(after_in_child=_freeze)


class DataLoader(Loader):
    """Batches of a job as tensors, for an existing training loop.

    Arguments that are not described here are those of `trainmaster.Loader`, or of torch's DataLoader, such as `multiprocessing_context`,
    `prefetch_factor` and `pin_memory`. The functions run in `num_workers` worker processes. `collate_fn` is torch's by default.

    `group` is a process group of torch.distributed whose ranks make each step together. All of them get as many batches: a rank without
    records gets a batch again with `weight` 0. The gradient of `loss * loader.weight` in DDP is that of the mean over all records.
    """

    def __init__(
        self,
        paths: Paths | None = None,
        *,
        decode: Decode | None = None,
        decode_batch: Callable[[list[memoryview]], Any] | None = None,
        batch_size: int = 1,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        shuffle: bool = False,
        shuffle_window: int = 1,
        seed: int = 0,
        client: Client | None = None,
        addr: str | None = None,
        job: str | None = None,
        timeout: float = 600,
        window: int = WINDOW,
        group: Any = None,
        **torch_arguments: Any,
    ) -> None:
        """See the class."""
        for name in ("dataset", "sampler", "batch_sampler", "drop_last", "in_order"):
            if name in torch_arguments:
                raise TypeError(f"{name}: expected no such argument: the master decides which records this trainer gets, and they come in order")
        if unknown := torch_arguments.keys() - inspect.signature(TorchLoader).parameters.keys():
            raise TypeError(f"{', '.join(sorted(unknown))}: expected the arguments of trainmaster.torch.DataLoader, or of torch's, found other names")
        self.num_workers, self._arguments = whole("num_workers", num_workers, 0), torch_arguments
        self._method = _start_method(torch_arguments.get("multiprocessing_context")) if num_workers else ""
        functions(collate_fn=collate_fn)
        at_most_one(collate_fn=collate_fn, decode_batch=decode_batch)
        self._check_functions(decode=decode, decode_batch=decode_batch, collate_fn=collate_fn)
        self.rebuilt = 0
        super().__init__(
            paths,
            decode=decode,
            decode_batch=decode_batch,
            collate=collate_fn or (None if decode is None else default_collate),
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
        if group is None:
            return
        if self.client._cuts:
            self.close()
            raise errors.InvalidError(
                "group: expected none in a synchronous job, whose trainers make each step together, found a group: leave it out, "
                "or start the master without --update-mode sync"
            )
        self._group_loop = GroupLoop(self, Group(group))

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(w.pid for w in self._workers)

    @property
    def dataset(self) -> _Dataset:
        """What the workers read. It has no length, and no other DataLoader can read it."""
        return _Dataset(self._reader())

    _workers: Sequence[Any] = ()

    def _check_functions(self, **functions: object) -> None:
        if self._method in {"", "fork"}:
            return
        for name, function in functions.items():
            try:
                pickle.dumps(function)
            except (pickle.PicklingError, AttributeError, TypeError) as e:
                raise ValueError(
                    f"{name}: expected a function that other processes can import, since they start by {self._method}, found {function!r} ({e}): "
                    "define it at the top level of a module, or use multiprocessing_context='fork'"
                ) from None

    def _build(self) -> Any:
        if self.checkpoints is not None:
            self.checkpoints._settle()  # workers are not forked beside a thread
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())

        def addresses() -> Iterator[Any]:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # the workers have started, and a draw can take long
            yield from map(operator.attrgetter("runs"), iter(self._sampler.draw, None))

        parent = 0 if self._method == "forkserver" else os.getpid()  # of the workers
        begin = functools.partial(_begin_worker, parent, self._arguments.get("worker_init_fn"))
        generator = torch.Generator()  # so that the random numbers of the script do not depend on the workers
        loader: TorchLoader[Any] = TorchLoader(
            self.dataset,  # type: ignore[arg-type]
            batch_sampler=addresses(),
            collate_fn=_same,
            num_workers=self.num_workers,
            **{"generator": generator, **self._arguments, "worker_init_fn": begin},
        )
        if not self.num_workers:
            return iter(loader)
        loader.collate_fn = functools.partial(_Packed, room=_room(self.num_workers * (loader.prefetch_factor or 1)))
        _watch.install()
        try:
            # Ctrl-C is for this process, which ends the workers. It would end a worker that has not reached torch's loop, as a failure.
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
            with _watch.start():
                iterator = iter(loader)
                with contextlib.suppress(OSError):
                    fcntl.fcntl(iterator._worker_result_queue._reader.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)  # type: ignore[attr-defined]
                self._workers = iterator._workers  # type: ignore[attr-defined]
                signal_handling._remove_worker_pids(id(iterator))
                iterator._worker_pids_set = False  # type: ignore[attr-defined]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if self._method == "forkserver":
            threading.Thread(target=_watch.poke, args=(self._workers,), name="trainmaster-workers", daemon=True).start()
        return iterator

    def _read(self) -> Iterator[Result]:
        iterator = self._build()
        failed, has_answered = 0, False
        while True:
            try:
                result = self._next(iterator)
            except StopIteration:
                return
            except (errors.Error, TimeoutError):
                raise
            except Exception as e:
                # RuntimeError, ConnectionResetError, EOFError, FileNotFoundError: it depends on what the worker was doing.
                if not self._has_died():
                    raise
                if not has_answered and any(w.exitcode == 1 for w in self._workers):  # as the interpreter ends it: another one would do the same
                    raise RuntimeError("a worker of the DataLoader ended with exit code 1 before the first batch: its message is above") from e
                failed += 1
                if failed > _RETRIES:
                    raise RuntimeError(
                        f"DataLoader workers died {failed} times at the same batch: look for their messages, and for the limit of memory"
                    ) from e
                self.rebuilt += 1
                iterator = None
                self.account.redraw(self._ahead)
                iterator = self._build()
                continue
            if result is None:
                raise errors.AgentLostError
            failed, has_answered = 0, True
            yield result

    def _has_died(self) -> bool:
        return bool(self._workers) and bool(multiprocessing.connection.wait([w.sentinel for w in self._workers], _END_OF_WORKER))

    def _next(self, iterator: Any) -> Any:
        if not self._workers:
            return next(iterator)
        try:
            _watch.arm(iterator)
            return next(iterator)
        finally:
            _watch.is_armed = False
            _watch.iterator = None


def _start_method(context: Any) -> str:
    if context is None:
        return multiprocessing.get_start_method()
    if isinstance(context, str):
        return context
    return str(context.get_start_method())
