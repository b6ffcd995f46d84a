"""The link: replies by id, tasks of replies that were given up, interrupts between any two instructions."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import struct
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from trainmaster import _link, errors
from trainmaster._link import Link, Records


class Peer(threading.Thread):
    """Answers requests with their number, and gives a task with each."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(daemon=True)
        self.sock = sock
        self.requests: list[dict[str, Any]] = []
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        with contextlib.suppress(ConnectionError):  # the test has ended
            self.answer()

    def answer(self) -> None:
        file = self.sock.makefile("rb")
        while head := file.read(4):
            request = json.loads(file.read(struct.unpack("<I", head)[0]))
            self.requests.append(request)
            if not request.get("id"):
                continue
            reply: dict[str, Any] = {"id": request["id"], "echo": request.get("text"), "tasks": [{"id": len(self.requests)}]}
            if request["op"] == "chunk":
                reply |= {"fd": True, "size": 21, "records": 2, "gap": 4, "key": request["id"], "tasks": []}
            body = json.dumps(reply).encode()
            frame = struct.pack("<I", len(body)) + body
            if request["op"] == "chunk":
                fd = os.memfd_create("x")
                os.write(fd, struct.pack("<3I", 12, 17, 25) + bytes([ord("a") + request["offset"]]) + b"\0\0\0\0bcde")
                socket.send_fds(self.sock, [frame], [fd])
                os.close(fd)
            else:
                self.sock.sendall(frame[:5])
                self.sock.sendall(frame[5:])


def pair() -> tuple[Link, Peer]:
    ours, theirs = socket.socketpair()
    return Link(ours), Peer(theirs)


def test_reply_of_another_request_is_not_taken() -> None:
    link, _ = pair()
    number = link._last = 1
    link._send({"id": number, "op": "x", "text": "late"})
    link.give_up(number)
    assert link.call("x", text="now")["echo"] == "now"
    assert [t["id"] for t in link.tasks] == [1, 2]  # the tasks of both
    link.forget(1)
    assert [t["id"] for t in link.tasks] == [2]


def test_error_has_its_class() -> None:
    ours, theirs = socket.socketpair()
    link = Link(ours)
    body = json.dumps({"id": 1, "error": {"kind": "drained", "text": "it is"}}).encode()
    theirs.sendall(struct.pack("<I", len(body)) + body)
    with pytest.raises(errors.DrainedError, match="it is"):
        link.call("x")
    theirs.close()
    with pytest.raises(errors.AgentLostError):
        link.call("x")


def test_freed_chunk_is_reported_with_the_next_request() -> None:
    link, peer = pair()
    records = link.chunk(chunk(0))
    assert [bytes(r) for r in records] == [b"a", b"bcde"]
    (kept,) = records.take([1])
    del records
    link.call("x")
    assert not [r for r in peer.requests if r["op"] == "free"]
    assert bytes(kept) == b"bcde"
    del kept
    link.call("x")
    assert [r["key"] for r in peer.requests if r["op"] == "free"] == [1]


def test_memory_of_a_request_that_was_given_up_is_freed() -> None:
    link, peer = pair()
    link.give_up(link.begin("chunk", path="p", offset=0))
    link.call("x")
    link.call("x")
    assert [r["key"] for r in peer.requests if r["op"] == "free"] == [1]


def chunk(offset: int) -> dict[str, Any]:
    return {"path": "p", "offset": offset}


def first_record(records: Records) -> bytes:
    return bytes(next(iter(records)))


def test_following_chunk_is_requested_once_before_it_is_needed() -> None:
    link, peer = pair()
    assert first_record(link.chunk(chunk(0), chunk(1))) == b"a"
    link.call("x")
    assert [r["offset"] for r in peer.requests if r["op"] == "chunk"] == [0, 1]
    assert first_record(link.chunk(chunk(1), chunk(2))) == b"b"
    assert first_record(link.chunk(chunk(2))) == b"c"
    link.call("x")
    assert [r["offset"] for r in peer.requests if r["op"] == "chunk"] == [0, 1, 2]
    assert [r["key"] for r in peer.requests if r["op"] == "free"] == [1, 2, 4]


def test_following_chunk_that_is_not_needed_is_freed() -> None:
    link, peer = pair()
    link.chunk(chunk(0), chunk(1))
    link.call("x")
    assert first_record(link.chunk(chunk(2))) == b"c"
    link.call("x")
    link.call("x")
    assert sorted(r["key"] for r in peer.requests if r["op"] == "free") == [1, 2, 4]


@pytest.mark.parametrize("closes", [False, True])
def test_link_that_ends_leaves_no_descriptor_of_a_chunk_ahead(closes: bool) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    link, peer = pair()
    link.chunk(chunk(0), chunk(1))
    link.call("x")  # the reply of the second chunk comes before
    if closes:
        link.close()
    del link
    peer.join(10)
    peer.sock.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_descriptor_that_the_kernel_has_dropped_is_a_lack_of_resources() -> None:
    """F506: the process has no room for it. The memory is freed, and the next reply has its descriptor."""
    link, peer = pair()
    with pytest.MonkeyPatch.context() as m:
        m.setattr(socket, "send_fds", lambda sock, frames, _: sock.sendall(*frames))
        with pytest.raises(errors.ResourceError, match="chunk: expected a file descriptor, found none: use fewer workers"):
            link.chunk(chunk(0))
    assert [bytes(r) for r in link.chunk(chunk(0))] == [b"a", b"bcde"]
    assert [r["key"] for r in peer.requests if r["op"] == "free"] == [1]


def test_closed_link_is_a_lost_agent() -> None:
    link, _ = pair()
    number = link.begin("x")
    link.close()
    with pytest.raises(errors.AgentLostError):
        link.call("x")
    with pytest.raises(errors.AgentLostError):
        link.post("x")
    with pytest.raises(errors.AgentLostError):
        link.poll(number)


class Interrupt(BaseException):
    """As Ctrl-C."""


def one(at: int) -> bool:
    link, peer = pair()
    count, raised = 0, False

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count, raised
        if frame.f_code.co_filename != _link.__file__ or frame.f_code.co_name == "_free":
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not raised:
            count += 1
            if count == at:
                raised = True
                raise Interrupt
        return trace

    echoes = []
    for text in ("a", "b", "chunk", "following", "c"):
        while True:
            try:
                sys.settrace(trace)
                if text == "chunk":
                    assert first_record(link.chunk(chunk(0), chunk(1))) == b"a", at
                elif text == "following":
                    assert first_record(link.chunk(chunk(1))) == b"b", at
                else:
                    echoes.append(link.call("x", timeout=20, text=text)["echo"])
                break
            except Interrupt:
                pass
            finally:
                sys.settrace(None)
    assert echoes == ["a", "b", "c"], at
    given = [i + 1 for i, r in enumerate(peer.requests) if r["op"] == "x"]
    assert [t["id"] for t in link.tasks] == given, at
    link.close()
    peer.join(10)
    return raised


def gives_up(at: int, failures: list[BaseException]) -> bool:
    """Interrupt instruction `at` of what gives a chunk up, end the link, and add what cannot be closed. False: there is no such instruction."""
    link, peer = pair()
    link.chunk(chunk(0), chunk(1))
    link.call("x")
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_name not in {"give_up", "_drop"}:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count == at:
                raise Interrupt
        return trace

    sys.settrace(trace)
    try:
        link.chunk(chunk(2))
    except Interrupt:
        pass
    finally:
        sys.settrace(None)
    with pytest.MonkeyPatch.context() as m:
        m.setattr(sys, "unraisablehook", lambda e: failures.append(e.exc_value))
        link.sock.close()
        del link
        gc.collect()
    peer.join(10)
    return count >= at


def test_interrupt_closes_no_descriptor_twice() -> None:
    """F393: its number may be that of another file by then."""
    failures: list[BaseException] = []
    at = 1
    while gives_up(at, failures):
        at += 1
    assert at > 10
    assert not failures


def test_interrupt_at_any_instruction_mixes_up_no_reply() -> None:
    at = 1
    while one(at):
        at += 1
    assert at > 400
