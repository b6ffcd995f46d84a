"""Requests and replies over one socket of the agent: frames of a length (u32, little endian) and JSON, and descriptors of chunks.

An exception can come between any two bytecodes (Ctrl-C, torch's handler of SIGCHLD). A link stays usable after it: bytes are received,
sent and noted inside one call of the interpreter's C code, and everything else replaces the state in one step. A reply to a request that was
given up is recognized by its id. Its tasks are kept, and the memory of its chunk is freed.
"""

from __future__ import annotations

import array
import collections
import contextlib
import itertools
import json
import math
import mmap
import os
import select
import socket
import struct
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from . import errors

_PATIENCE = 30.0  # seconds without a reply, after which the agent is asked whether it runs
_LENGTH = struct.Struct("<I")
_LARGEST = 1 << 20  # bytes of a request: MaxRequest of trainer/agent
_ANCILLARY = socket.CMSG_SPACE(16 * array.array("i").itemsize)
FEWER = "use fewer workers or a smaller shuffle_window, or allow more open files (ulimit -n)"
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
Received = tuple[bytes, list[tuple[int, int, bytes]], int, Any]


class _Inbound(NamedTuple):
    raw: collections.deque[Received]  # what recvmsg returned and nothing has looked at
    buffer: bytes = b""
    descriptors: tuple[int, ...] = ()
    replies: Mapping[int, tuple[dict[str, Any], int | None]] = {}
    tasks: tuple[dict[str, Any], ...] = ()  # of all replies, also of those that were given up
    is_ended: bool = False


class _Outbound(NamedTuple):
    data: bytes
    sent: collections.deque[int]  # bytes that each call has sent


class Records:
    """The records of a chunk: views of memory that is valid as long as one of them, or this object, exists. A view is made when it is needed."""

    def __init__(self, memory: memoryview, records: int, gap: int) -> None:
        """Read the table of offsets at the begin of the memory. `gap` is the number of bytes between a record and the next one."""
        self._memory, self._gap = memory, gap
        self._at: list[int] = memory[: 4 * (records + 1)].cast("I").tolist()

    def __iter__(self) -> Iterator[memoryview]:
        """Iterate over the records."""
        memory, gap, at = self._memory, self._gap, self._at
        return (memory[begin : end - gap] for begin, end in zip(at, itertools.islice(at, 1, None)))

    def take(self, numbers: Iterable[int]) -> list[memoryview]:
        """Return some of the records."""
        memory, gap, at = self._memory, self._gap, self._at
        return [memory[at[i] : at[i + 1] - gap] for i in numbers]


class Link:
    """A connection to the agent. It belongs to the process that opened it."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected socket."""
        self.sock = sock
        self.pid = os.getpid()
        self.is_session_lost = False  # the master has ended the session, as for another trainer with its name
        self._last = 0
        self._in = _Inbound(collections.deque())
        self._out = _Outbound(b"", collections.deque())
        self._unwanted: set[int] = set()
        self._freed: collections.deque[int] = collections.deque()
        self._asked: tuple[tuple[Mapping[str, Any], int], ...] = ()  # chunks whose records nothing has taken, with the numbers of the requests

    @property
    def tasks(self) -> tuple[dict[str, Any], ...]:
        """Tasks of all replies that nothing has taken with `forget`."""
        return self._in.tasks

    def forget(self, last: int) -> None:
        """Drop the tasks up to this id from `tasks`."""
        s = self._in
        self._in = s._replace(tasks=tuple(t for t in s.tasks if t["id"] > last))

    def call(self, op: str, timeout: float | None = None, **fields: Any) -> dict[str, Any]:
        """Send a request and return its reply. It can take any time while the agent runs, or at most `timeout` seconds: a TimeoutError."""
        return self._call(op, timeout, fields)[0]

    def post(self, op: str, **fields: Any) -> None:
        """Send a request without a reply."""
        self._send({"op": op, **fields})

    def begin(self, op: str, **fields: Any) -> int:
        """Send a request, and return its number for `poll`."""
        self.check_owner(op)
        self._last = number = self._last + 1
        self._send({"id": number, "op": op, **fields})
        return number

    def poll(self, number: int, timeout: float = 0) -> dict[str, Any] | None:
        """Return the reply to a request of `begin`, or None if it has not come."""
        end = time.monotonic() + timeout
        self._parse()
        while number not in self._in.replies and not self._in.is_ended and self._is_readable(max(0, end - time.monotonic())):
            self._receive()
            self._parse()
        if number not in self._in.replies:
            if self._in.is_ended:
                raise errors.AgentLostError
            return None
        reply, _ = self._in.replies[number]
        return self._pop(number, reply)

    def give_up(self, number: int) -> None:
        """Ignore the reply to a request, and free what it brings, now or later."""
        self._unwanted.add(number)
        replies = dict(self._in.replies)
        if number in replies:
            reply = replies.pop(number)
            self._in = self._in._replace(replies=replies)  # before its descriptor is closed: no descriptor is closed twice
            self._drop(*reply)

    def chunk(self, chunk: Mapping[str, Any], following: Mapping[str, Any] | None = None) -> Records:
        """Return the records of a chunk. Meanwhile, the agent reads the following one."""
        self.check_owner("chunk")
        wanted = [c for c in (chunk, following) if c is not None]
        for asked, number in self._asked:
            if asked not in wanted:
                self._forget(number)
        self._ask(wanted)
        number = next(number for asked, number in self._asked if asked == chunk)
        try:
            reply, descriptor = self._await(number)
        except BaseException:
            self._forget(number)
            raise
        self._asked = self._asked_without(number)
        return self._records(*self._opened("chunk", self._pop(number, reply), descriptor))

    def _ask(self, chunks: Iterable[Mapping[str, Any]]) -> None:
        """Send the requests for chunks that are not sent."""
        sent = [asked for asked, _ in self._asked]
        new = [(chunk, self._last + i) for i, chunk in enumerate((c for c in chunks if c not in sent), 1)]
        if not new:
            return
        self._last += len(new)
        try:
            self._send(*({"id": number, "op": "chunk", **chunk} for chunk, number in new))
            self._asked += tuple(new)
        except BaseException:
            for _, number in new:
                self._forget(number)
            raise

    def _forget(self, number: int) -> None:
        self._asked = self._asked_without(number)
        self.give_up(number)

    def _asked_without(self, number: int) -> tuple[tuple[Mapping[str, Any], int], ...]:
        return tuple(a for a in self._asked if a[1] != number)

    def open(self, op: str, **fields: Any) -> tuple[dict[str, Any], int]:
        """Send a request whose reply has a descriptor, and return both."""
        return self._opened(op, *self._call(op, None, fields))

    def _opened(self, op: str, reply: dict[str, Any], descriptor: int | None) -> tuple[dict[str, Any], int]:
        if descriptor is None:  # the kernel drops those for which the process has no room
            if "key" in reply:
                self._freed.append(reply["key"])
            raise errors.ResourceError(f"{op}: expected a file descriptor, found none: {FEWER}")
        return reply, descriptor

    def close(self) -> None:
        """Close the socket, in this process only."""
        self.sock.close()
        self._in = self._in._replace(is_ended=True)

    def __del__(self) -> None:
        """Close the descriptors of replies that nothing has taken."""
        self._parse()
        for descriptor in (*self._in.descriptors, *(d for _, d in self._in.replies.values() if d is not None)):
            os.close(descriptor)
        self._in = self._in._replace(descriptors=(), replies={})  # the session of a client can end after it, in a collection of both

    def _call(self, op: str, timeout: float | None, fields: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
        self.check_owner(op)
        self._last = number = self._last + 1
        try:
            self._send({"id": number, "op": op, **fields})
            reply, descriptor = self._await(number) if timeout is None else self._wait(number, timeout)
        except BaseException:
            self.give_up(number)
            raise
        return self._pop(number, reply), descriptor

    def check_owner(self, op: str) -> None:
        """Refuse an operation in another process than the one that made the client."""
        if self.pid != os.getpid():
            raise errors.AgentError(f"{op}: expected the process {self.pid} that made the client, found {os.getpid()}: make a client in each process")

    def _pop(self, number: int, reply: dict[str, Any]) -> dict[str, Any]:
        """Return a reply that nothing needs any longer, or raise its error."""
        self._in = self._in._replace(replies={k: v for k, v in self._in.replies.items() if k != number})
        if error := reply.get("error"):
            found = errors.of_kind(error.get("kind", "other"), error.get("text", ""))
            self.is_session_lost = self.is_session_lost or isinstance(found, errors.SessionLostError)
            raise found
        return reply

    def _drop(self, reply: Mapping[str, Any], descriptor: int | None) -> None:
        self._unwanted.discard(reply["id"])
        if descriptor is not None:
            os.close(descriptor)
            if "key" in reply:
                self._freed.append(reply["key"])

    def _send(self, *requests: Mapping[str, Any]) -> None:
        if self._in.is_ended:
            raise errors.AgentLostError
        last = [_body(fields) for fields in requests]
        bodies = []
        while self._freed:
            bodies.append(b'{"op":"free","key":%d}' % self._freed.popleft())
        bodies += last
        data = b"".join(_LENGTH.pack(len(body)) + body for body in bodies)
        before, sent = self._out
        self._out = _Outbound(before[sum(sent) :] + data, collections.deque())
        while True:
            before, sent = self._out
            left = before[sum(sent) :]
            if not left:
                return
            try:
                sent.extend(map(self.sock.send, (left,)))
            except (BrokenPipeError, ConnectionResetError):
                raise errors.AgentLostError from None

    def _await(self, number: int) -> tuple[dict[str, Any], int | None]:
        """Wait for a reply that can take any time, as for a chunk of a slow store, while the agent runs."""
        while True:
            with contextlib.suppress(errors.AgentTimeoutError):
                return self._wait(number, _PATIENCE)
            try:
                with contextlib.suppress(errors.InvalidError):  # a member of a ring has no chunks, and says so
                    self._call("free", _PATIENCE, {})  # without a key of a chunk, and no request waits for another one
            except errors.AgentTimeoutError as e:
                raise errors.AgentLostError(f"expected an answer of the agent within {2 * _PATIENCE:.0f} s, found none: it is stopped") from e

    def _wait(self, number: int, timeout: float) -> tuple[dict[str, Any], int | None]:
        end = time.monotonic() + timeout
        while True:
            self._parse()
            if number in self._in.replies:
                return self._in.replies[number]
            if self._in.is_ended:
                raise errors.AgentLostError
            if not self._is_readable(max(0, end - time.monotonic())):
                raise errors.AgentTimeoutError(f"the agent has not answered within {timeout:.0f} s")
            self._receive()

    def _receive(self) -> None:
        try:
            self._in.raw.extend(map(self.sock.recvmsg, (1 << 16,), (_ANCILLARY,)))
        except ConnectionResetError:
            raise errors.AgentLostError from None

    def _is_readable(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _parse(self) -> None:
        """Read the frames in what was received."""
        s = self._in
        if not s.raw:
            return
        buffer, descriptors, replies, tasks = s.buffer, list(s.descriptors), dict(s.replies), list(s.tasks)
        parts, is_ended = [buffer], s.is_ended
        for data, ancillary, _, _ in s.raw:
            parts.append(data)
            is_ended = not data
            for level, kind, rights in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    descriptors += array.array("i", rights[: len(rights) // 4 * 4])
        buffer = b"".join(parts)
        at, unwanted = 0, []
        while len(buffer) >= at + 4 and len(buffer) >= at + 4 + (length := _LENGTH.unpack_from(buffer, at)[0]):
            reply = json.loads(buffer[at + 4 : at + 4 + length])
            at += 4 + length
            descriptor = descriptors.pop(0) if reply.get("fd") and descriptors else None
            tasks += reply.get("tasks") or ()
            if reply["id"] in self._unwanted:
                unwanted.append((reply, descriptor))
            else:
                replies[reply["id"]] = reply, descriptor
        self._in = _Inbound(collections.deque(), buffer[at:], tuple(descriptors), replies, tuple(tasks), is_ended)
        for reply, descriptor in unwanted:
            self._drop(reply, descriptor)

    def _records(self, reply: Mapping[str, Any], descriptor: int) -> Records:
        try:
            memory = mmap.mmap(descriptor, reply["size"], mmap.MAP_SHARED, mmap.PROT_READ)
        except OSError as e:
            self._freed.append(reply["key"])
            raise errors.ResourceError(f"chunk: expected memory of {reply['size']} bytes, found {e.strerror}: {FEWER}") from e
        finally:
            os.close(descriptor)
        # The views keep the mapping. When the last of them is gone, the agent may use the memory again.
        weakref.finalize(memory, self._free, reply["key"], os.getpid()).atexit = False
        return Records(memoryview(memory), reply["records"], reply.get("gap", 0))

    def _free(self, key: int, pid: int) -> None:
        # A finalizer can run inside any other method: it only notes the key.
        if pid == os.getpid():
            self._freed.append(key)


def _body(fields: Mapping[str, Any]) -> bytes:
    """Return a request in JSON."""
    try:
        body = _encode(fields).encode()
    except ValueError:
        raise errors.InvalidError(f"{fields['op']}: expected finite numbers, found {_not_finite(fields)}") from None
    except TypeError as e:
        raise errors.InvalidError(f"{fields['op']}: expected numbers and text: {e}") from None
    if len(body) > _LARGEST:
        raise errors.InvalidError(
            f"{fields['op']}: expected a request of at most {_LARGEST} bytes, found {len(body)}: give fewer names, for files a glob"
        )
    return body


def _not_finite(value: Any, name: str = "") -> str:
    """Return name and value of the first number that JSON does not have."""
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    if isinstance(value, float) and not math.isfinite(value):
        return f"{name} {value}"
    return next(filter(None, (_not_finite(part, f"{name}.{key}".lstrip(".")) for key, part in parts)), "")
