"""The link: replies by id, tasks of replies that were given up, interrupts between any two instructions."""

from __future__ import annotations

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
from trainmaster._link import Link


class Peer(threading.Thread):
    """Answers requests with their number, and gives a task with each."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(daemon=True)
        self.sock = sock
        self.requests: list[dict[str, Any]] = []
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
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
                os.write(fd, struct.pack("<3I", 12, 17, 25) + b"a\0\0\0\0bcde")
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
    records = link.chunk({"path": "p", "offset": 0})
    assert [bytes(r) for r in records] == [b"a", b"bcde"]
    kept = records[1]
    del records
    link.call("x")
    assert not [r for r in peer.requests if r["op"] == "free"]
    assert bytes(kept) == b"bcde"
    del kept
    link.call("x")
    assert [r["key"] for r in peer.requests if r["op"] == "free"] == [1]


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
    for text in ("a", "b", "chunk", "c"):
        while True:
            try:
                sys.settrace(trace)
                if text == "chunk":
                    assert [bytes(r) for r in link.chunk({"path": "p", "offset": 0})] == [b"a", b"bcde"]
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


def test_interrupt_at_any_instruction_mixes_up_no_reply() -> None:
    at = 1
    while one(at):
        at += 1
    assert at > 400
