"""Requests and replies over one socket of the agent: frames of a length (u32, little endian) and JSON, and descriptors of chunks.

An exception can come between any two bytecodes (Ctrl-C, torch's handler of SIGCHLD). A link stays usable after it: bytes are received,
sent and noted inside one call of the interpreter's C code, and everything else replaces the state in one step. A reply to a request that was
given up is recognized by its id. Its tasks are kept, and the memory of its chunk is freed.
"""

from __future__ import annotations

import array
import collections
import json
import math
import mmap
import os
import select
import socket
import struct
import time
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import errors

_LENGTH = struct.Struct("<I")
_LARGEST = 1 << 20  # bytes of a request: MaxRequest of trainer/agent
_ANCILLARY = socket.CMSG_SPACE(16 * array.array("i").itemsize)
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


class Link:
    """A connection to the agent. It belongs to the process that opened it."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected socket."""
        self.sock = sock
        self.pid = os.getpid()
        self._last = 0
        self._in = _Inbound(collections.deque())
        self._out = _Outbound(b"", collections.deque())
        self._unwanted: set[int] = set()
        self._freed: collections.deque[int] = collections.deque()

    @property
    def tasks(self) -> tuple[dict[str, Any], ...]:
        """Tasks of all replies that nothing has taken with `forget`."""
        return self._in.tasks

    def forget(self, last: int) -> None:
        """Drop the tasks up to this id from `tasks`."""
        s = self._in
        self._in = s._replace(tasks=tuple(t for t in s.tasks if t["id"] > last))

    def call(self, op: str, timeout: float | None = None, **fields: Any) -> dict[str, Any]:
        """Send a request and return its reply. A reply that does not come within `timeout` seconds is a TimeoutError."""
        return self._call(op, timeout, fields)[0]

    def post(self, op: str, **fields: Any) -> None:
        """Send a request without a reply."""
        self._send({"op": op, **fields})

    def begin(self, op: str, **fields: Any) -> int:
        """Send a request, and return its number for `poll`."""
        self._check_owner(op)
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
            self._drop(*replies.pop(number))
            self._in = self._in._replace(replies=replies)

    def chunk(self, chunk: Mapping[str, Any]) -> list[memoryview]:
        """Return the records of a chunk: views of memory that is valid as long as one of them exists."""
        reply, descriptor = self.open("chunk", **chunk)
        return self._records(descriptor, reply)

    def open(self, op: str, **fields: Any) -> tuple[dict[str, Any], int]:
        """Send a request whose reply has a descriptor, and return both."""
        reply, descriptor = self._call(op, None, fields)
        if descriptor is None:
            raise errors.AgentError(f"agent: expected a file descriptor with the reply to {op}, found none: install the package again")
        return reply, descriptor

    def close(self) -> None:
        """Close the socket, in this process only."""
        self.sock.close()

    def _call(self, op: str, timeout: float | None, fields: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
        self._check_owner(op)
        self._last = number = self._last + 1
        try:
            self._send({"id": number, "op": op, **fields})
            reply, descriptor = self._wait(number, timeout)
        except BaseException:
            self.give_up(number)
            raise
        return self._pop(number, reply), descriptor

    def _check_owner(self, op: str) -> None:
        if self.pid != os.getpid():
            raise errors.AgentError(f"{op}: expected the process {self.pid} that made the client, found {os.getpid()}: make a client in each process")

    def _pop(self, number: int, reply: dict[str, Any]) -> dict[str, Any]:
        """Return a reply that nothing needs any longer, or raise its error."""
        self._in = self._in._replace(replies={k: v for k, v in self._in.replies.items() if k != number})
        if error := reply.get("error"):
            raise errors.of_kind(error.get("kind", "other"), error.get("text", ""))
        return reply

    def _drop(self, reply: Mapping[str, Any], descriptor: int | None) -> None:
        self._unwanted.discard(reply["id"])
        if descriptor is not None:
            os.close(descriptor)
            if "key" in reply:
                self._freed.append(reply["key"])

    def _send(self, fields: Mapping[str, Any]) -> None:
        try:
            body = json.dumps(fields, allow_nan=False).encode()
        except ValueError:
            raise errors.InvalidError(f"{fields['op']}: expected finite numbers, found {_not_finite(fields)}") from None
        if len(body) > _LARGEST:
            raise errors.InvalidError(
                f"{fields['op']}: expected a request of at most {_LARGEST} bytes, found {len(body)}: give fewer names, for files a glob"
            )
        bodies = []
        while self._freed:
            bodies.append(json.dumps({"op": "free", "key": self._freed.popleft()}).encode())
        bodies.append(body)
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

    def _wait(self, number: int, timeout: float | None) -> tuple[dict[str, Any], int | None]:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            self._parse()
            if number in self._in.replies:
                return self._in.replies[number]
            if self._in.is_ended:
                raise errors.AgentLostError
            if end is not None and not self._is_readable(max(0, end - time.monotonic())):
                raise TimeoutError(f"the agent has not answered within {timeout:.0f} s")
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
            descriptor = descriptors.pop(0) if reply.get("fd") else None
            tasks += reply.get("tasks") or ()
            if reply["id"] in self._unwanted:
                unwanted.append((reply, descriptor))
            else:
                replies[reply["id"]] = reply, descriptor
        self._in = _Inbound(collections.deque(), buffer[at:], tuple(descriptors), replies, tuple(tasks), is_ended)
        for reply, descriptor in unwanted:
            self._drop(reply, descriptor)

    def _records(self, descriptor: int, reply: Mapping[str, Any]) -> list[memoryview]:
        try:
            memory = mmap.mmap(descriptor, reply["size"], mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0), mmap.PROT_READ)
        finally:
            os.close(descriptor)
        # The views keep the mapping. When the last of them is gone, the agent may use the memory again.
        weakref.finalize(memory, self._free, reply["key"], os.getpid()).atexit = False
        view = memoryview(memory)
        n, gap = reply["records"], reply.get("gap", 0)
        at = view[: 4 * (n + 1)].cast("I").tolist()
        return [view[begin : end - gap] for begin, end in zip(at[:-1], at[1:])]

    def _free(self, key: int, pid: int) -> None:
        # A finalizer can run inside any other method: it only notes the key.
        if pid == os.getpid():
            self._freed.append(key)


def _not_finite(value: Any, name: str = "") -> str:
    """Return name and value of the first number that JSON does not have."""
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    if isinstance(value, float) and not math.isfinite(value):
        return f"{name} {value}"
    return next(filter(None, (_not_finite(part, f"{name}.{key}".lstrip(".")) for key, part in parts)), "")
