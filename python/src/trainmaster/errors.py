"""Errors of the package. Each has what was expected, what was found and what to do in its text."""

from __future__ import annotations


class Error(Exception):
    """Base class of all errors of the package."""


class AgentError(Error):
    """The agent cannot be started, or speaks another version."""


class AgentLostError(Error, ConnectionError):
    """The agent has ended. A loader starts another one."""

    def __init__(self, text: str = "the agent has ended") -> None:
        """Make it."""
        super().__init__(text)


class AgentTimeoutError(Error, TimeoutError):
    """The agent has not answered in time."""


class OverError(Error):
    """The job has ended."""


class JobFailedError(Error):
    """The job has failed."""


class CommitFirstError(Error):
    """No further task before a commit."""


class RolledBackError(Error):
    """The ring was rolled back, or must be: drop all tasks and load the last step."""


class RollbackFirstError(RolledBackError):
    """A task of the ring has failed, or a member was lost with one: call rollback first."""


class SessionLostError(Error):
    """The session of this trainer has ended. Its tasks were returned to the queue."""


class RankStoppedError(Error):
    """Another rank of the group was stopped. This rank has committed its last step, and cannot make another one alone."""


class DrainedError(Error):
    """An operator ended the work of this trainer."""


class DamagedError(Error):
    """A file of the dataset is damaged, or was replaced."""


class NotFoundError(Error, FileNotFoundError):
    """A file of the dataset does not exist."""


class ResourceError(Error):
    """The machine lacks memory or open files for a chunk. No task fails by it."""


class InvalidError(Error, ValueError):
    """A value that the master or the agent refuses."""


class ClosedError(Error):
    """The ring is closed: no generation follows."""


class OldGenerationError(Error):
    """A node of the ring was away for several generations, and the values of its own are removed."""


class MasterTimeoutError(Error, TimeoutError):
    """No master has answered within the timeout."""


class SaveError(Error, OSError):
    """The state of a step cannot be written."""


_KINDS: dict[str, type[Error]] = {
    "over": OverError,
    "failed": JobFailedError,
    "commit_first": CommitFirstError,
    "rollback_first": RollbackFirstError,
    "rolled_back": RolledBackError,
    "session_lost": SessionLostError,
    "drained": DrainedError,
    "damaged": DamagedError,
    "not_found": NotFoundError,
    "resources": ResourceError,
    "invalid": InvalidError,
    "timeout": MasterTimeoutError,
    "closed": ClosedError,
    "old_generation": OldGenerationError,
}


def of_kind(kind: str, text: str) -> Error:
    """Return the error for an error of the agent."""
    return _KINDS.get(kind, Error)(text)
