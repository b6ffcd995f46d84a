"""Rendezvous backend of torchrun: `torchrun --rdzv-backend=trainmaster --rdzv-endpoint=HOST:PORT ...`.

The master (`master --ring MIN:MAX`) forms the group of nodes, and keeps the values that torchrun shares in etcd. So the job outlives any
node and the master: in the backend c10d, it ends with the node that has the store. docs/python.md describes the use.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import datetime
import functools
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed import PrefixStore, Store
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from .. import errors
from .._agent import Agent, Directory, started
from ..client import _location
from ..local import ENDED_FILE

log = logging.getLogger("trainmaster")

_EXIT = "torchelastic/agent/terminal_state"  # in the keys of torchrun's barrier at its end
_SLICE = 2.0  # seconds of one request that waits
_JOIN_TIMEOUT = 600
_STORE_TIMEOUT = datetime.timedelta(seconds=300)
_CALL_TIMEOUT = 60.0
_JOB_ENDED = "the job has ended"  # why a ring is closed
_OPTIONS = ("id", "join_timeout")  # of --rdzv-conf
_OF_TORCHRUN = "timeout"  # an option that torchrun itself adds


class MemberStore(Store):
    """The values that the members of one generation share. The master keeps them in etcd."""

    def __init__(self, handler: Handler, generation: int) -> None:
        """Name the generation."""
        super().__init__()
        self._handler, self._generation = handler, generation
        self.set_timeout(_STORE_TIMEOUT)

    @property
    def _patience(self) -> float:
        """Seconds that `get` and `wait` wait. A PrefixStore sets and reads the timeout of the base class."""
        return float(self.timeout.total_seconds())  # type: ignore[attr-defined]

    def _call(self, op: str, **fields: Any) -> dict[str, Any]:
        try:
            return self._handler.call(op, generation=self._generation, **fields)
        except errors.ClosedError:
            # At its end, torchrun keeps a node until the others end, since they may need a store on it. This store is not on a node.
            if not any(_EXIT in key for key in [fields.get("key", ""), *fields.get("keys", [])]):
                raise
            return {"found": True, "number": 0, "values": [""]}

    def _read(self, keys: Sequence[str], wait: float) -> list[bytes] | None:
        end = time.monotonic() + wait
        while True:
            left = max(0.0, end - time.monotonic())
            reply = self._call("value_get", keys=list(keys), wait=min(_SLICE, left))
            if reply["found"]:
                return [base64.b64decode(v) for v in reply["values"]]
            if left <= _SLICE:
                return None

    def _must(self, keys: Sequence[str], wait: float) -> list[bytes]:
        values = self._read(keys, wait)
        if values is None:
            raise errors.MasterTimeoutError(f"values {', '.join(keys)}: expected them within {wait:.0f} s from the other nodes, found none")
        return values

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        self._call("value_set", key=key, value=_encoded(value))

    def get(self, key: str) -> bytes:
        """Return a value, waiting until there is one."""
        return self._must([key], self._patience)[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return values, waiting until there are all of them."""
        return self._must(keys, self._patience)

    def multi_set(self, keys: list[str], values: Sequence[str | bytes]) -> None:
        """Set values."""
        for key, value in zip(keys, values):
            self.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """Add to a number, and return the sum."""
        return int(self._call("value_add", key=key, amount=amount)["number"])

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Set a value that is as expected, and return the value after it."""
        reply = self._call("value_compare_set", key=key, expected=_encoded(expected_value), value=_encoded(desired_value))
        return base64.b64decode(reply["values"][0])

    def delete_key(self, key: str) -> bool:
        """Delete a value, and return whether there was one."""
        return bool(self._call("value_delete", key=key)["found"])

    deleteKey = delete_key  # noqa: N815 by this name, a PrefixStore calls it

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys have values."""
        return self._read(keys, 0) is not None

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        """Wait until all keys have values."""
        self._must(keys, self._patience if timeout is None else timeout.total_seconds())


class _SharedStore(PrefixStore):
    """The store of torchrun: its keys are none of those with which nodes meet. It keeps the other store, of which torch keeps the part in C++."""

    def __init__(self, store: MemberStore) -> None:
        super().__init__("torchrun", store)
        self._kept = store


def _encoded(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else bytes(value)).decode()


class Handler(RendezvousHandler):
    """A node of a job. An agent is its member of the ring, and leaves the ring when this process ends."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        """Join the ring."""
        self._parameters = parameters
        if unknown := parameters.config.keys() - {*_OPTIONS, _OF_TORCHRUN}:
            raise errors.InvalidError(f"--rdzv-conf: expected {' and '.join(_OPTIONS)}, found {', '.join(sorted(unknown))}: leave it out")
        named = [v for v in ("TRAINMASTER_ADDR", "TRAINMASTER_ENDPOINTS") if os.environ.get(v)]
        if not parameters.endpoint and not named:
            raise errors.InvalidError("rdzv-endpoint: expected host:port of the master, found none: set it, or TRAINMASTER_ADDR")
        if not named:  # torchrun gives its environment to the programs, whose loaders find the master so
            os.environ["TRAINMASTER_ADDR"] = parameters.endpoint
        if parameters.run_id not in ("", "none"):
            os.environ.setdefault("TRAINMASTER_JOB", parameters.run_id)
        where, environment, self._where = _location(parameters.endpoint or None, None)
        self._environment = {**environment, "TRAINMASTER_LOG_LEVEL": environment.get("TRAINMASTER_LOG_LEVEL", "warning")}
        self._member = parameters.get("id") or os.environ.get("TRAINMASTER_ID") or f"{socket.gethostname()}-{os.getpid()}"
        self._arguments = ["--ring", *where, "--id", self._member]
        if parameters.run_id not in ("", "none"):
            self._arguments += ["--job", parameters.run_id]
        if parameters.local_addr:
            self._arguments += ["--ring-host", parameters.local_addr]
        self._timeout = float(parameters.get_as_int("join_timeout", _JOIN_TIMEOUT) or _JOIN_TIMEOUT)
        self._lock = threading.RLock()  # of the agent
        self._generation = 0  # in which this node runs its programs
        self._agent: Agent | None = None
        self._is_shut_down = self._has_joined = False
        self._directory = Directory()
        self._remove = weakref.finalize(self, self._directory.remove)
        os.environ[ENDED_FILE] = self._directory.file
        atexit.register(_at_exit, weakref.ref(self))

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Make a request to the agent. If the agent has ended, another one joins: a change of a value may then be made twice."""
        with self._lock:
            while True:
                if self._is_shut_down:  # no other agent joins: the master of a closed ring ends
                    raise errors.ClosedError("the rendezvous of this node has ended")
                if self._agent is None:
                    self._agent = self._joined()
                try:
                    return self._agent.link.call(op, **fields)
                except errors.AgentLostError:
                    log.warning("the agent of this node has ended: another one joins")
                    self._agent.close(in_order=False)
                    self._agent = None

    def _joined(self) -> Agent:
        """Return an agent that has joined the ring."""
        agent = started(self._arguments, self._environment, functools.partial(self._await_join, time.monotonic() + self._timeout))
        self._has_joined = True
        return agent

    def _await_join(self, end: float, agent: Agent) -> None:
        while True:
            try:
                agent.hello(min(10.0, self._timeout), self._timeout)
                return
            except errors.MasterTimeoutError:
                if time.monotonic() >= end:
                    raise RendezvousTimeoutError(
                        f"master at {self._where}: expected an answer within {self._timeout:.0f} s, found none: "
                        "check the address and that the master runs"
                    ) from None
                log.warning("no master answers at %s, waiting", self._where)

    def _ring(self, after: int = 0, wait: float = 0) -> dict[str, Any]:
        return self.call("ring", after=after, wait=wait)

    def get_backend(self) -> str:
        """Name of this backend."""
        return "trainmaster"

    def get_run_id(self) -> str:
        """Name of the job."""
        return str(self._parameters.run_id)

    @property
    def use_agent_store(self) -> bool:
        """Whether programs share the store of torchrun: no, the program of rank 0 has a store of its own."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for a generation with this node that it has not run yet. If its programs failed, the next generation is asked for."""
        end = time.monotonic() + self._timeout
        try:
            state = self._ring(wait=_SLICE)
            if 0 < self._generation == state["generation"] and not state["ended"]:
                self.call("ring_failed", generation=self._generation, reason="torchrun starts its programs again")
            while True:
                state = self._next(state, end)
                self._check_nodes(state)
                self._generation = state["generation"]
                store = MemberStore(self, self._generation)
                with contextlib.suppress(errors.OldGenerationError):  # later ones have begun since: this node takes part in the next one
                    if self._meet(store, state, end):
                        members, rank = state["members"], state["rank"]
                        log.info("generation %d: rank %d of %d", self._generation, rank, len(members))
                        shared = _SharedStore(store)
                        return RendezvousInfo(shared, rank, len(members), RendezvousStoreInfo.build(rank, shared, local_addr=members[rank]["host"]))
        except errors.MasterTimeoutError as e:
            raise RendezvousTimeoutError(str(e)) from e
        except errors.ClosedError as e:
            raise RendezvousClosedError(str(e)) from e

    def _next(self, state: dict[str, Any], end: float) -> dict[str, Any]:
        """Wait for a generation with this node that it has not run yet."""
        warned = ""
        while not (state["state"] == "member" and state["generation"] > self._generation and not state["ended"] and state["rank"] >= 0):
            if state["state"] == "closed":
                raise RendezvousClosedError(state["reason"])
            left = end - time.monotonic()
            if left <= 0:
                raise RendezvousTimeoutError(
                    f"ring at {self._where}: expected a generation with {self._member} within {self._timeout:.0f} s: {state['reason']}"
                )
            if state["reason"] not in ("", warned) and left < self._timeout - 5:
                warned = state["reason"]
                log.warning("waiting for the ring: %s", warned)
            state = self._ring(state["update"], min(_SLICE, left))
        return state

    def _meet(self, store: MemberStore, state: dict[str, Any], end: float) -> bool:
        """Wait until all nodes of a generation are here: their agents are members before. False: another generation follows."""
        store.set(f"here/{state['rank']}", "1")
        keys = [f"here/{rank}" for rank in range(len(state["members"]))]

        def missing() -> str:
            return ", ".join(m["id"] for m, key in zip(state["members"], keys) if store._read([key], 0) is None)

        warned = ""
        while store._read(keys, _SLICE) is None:
            if not warned and (warned := missing()):
                log.warning("generation %d: waiting for %s, which can still stop its programs", self._generation, warned)
            now = self._ring()
            if now["generation"] > self._generation or now["ended"] or now["state"] == "closed":
                return False
            if time.monotonic() >= end:
                raise RendezvousTimeoutError(
                    f"generation {self._generation}: expected all nodes within {self._timeout:.0f} s, found none of {missing()}: look at its log"
                )
        return True

    def _check_nodes(self, state: dict[str, Any]) -> None:
        low, high = self._parameters.min_nodes, self._parameters.max_nodes
        if (state["min"], state["max"]) != (low, high):
            own = f"{state['min']}:{state['max']}"
            raise errors.InvalidError(f"--nnodes: expected {own} as --ring of the master has, found {low}:{high}: change one of them")

    def is_closed(self) -> bool:
        """Whether no generation follows."""
        try:
            return bool(self._ring()["state"] == "closed")
        except errors.ClosedError:
            return True

    def set_closed(self) -> None:
        """End the rendezvous for all nodes, if this node has taken part in it."""
        if not self._has_joined:
            return
        with contextlib.suppress(errors.ClosedError, errors.MasterTimeoutError):
            self.call("ring_close", reason=f"torchrun on {self._member} has ended", wait=_CALL_TIMEOUT)

    def num_nodes_waiting(self) -> int:
        """Return 1 if another generation follows the generation of this node: a node was lost, failed or joined."""
        try:
            state = self._ring()
        except errors.ClosedError as e:
            self._note_closed(str(e))
            return 0
        if state["state"] == "closed":
            self._note_closed(state["reason"])
        return int(state["state"] != "closed" and (state["generation"] > self._generation or bool(state["ended"])))

    def _note_closed(self, reason: str) -> None:
        """Let programs that have not reached the master of a job that has ended find its end: the master may have ended, too."""
        if _JOB_ENDED in reason:
            with contextlib.suppress(OSError), open(self._directory.file, "w", encoding="utf-8") as f:
                f.write(self._where)

    def shutdown(self) -> bool:
        """End the rendezvous for all nodes, as torchrun asks when its programs have ended. Some versions ask twice."""
        self.set_closed()
        with self._lock:
            self._is_shut_down = True
            if self._agent is not None:
                self._agent.close(in_order=False)
        return True


def _at_exit(this: weakref.ref[Handler]) -> None:
    """Leave the ring when torchrun ends by a signal, after which it calls no method of the handler."""
    node = this()
    if node is not None and node._agent is not None:
        node._agent.close(in_order=False)


def handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Return the constructor: the entry point `trainmaster` of `torchrun.handlers`."""
    return Handler
