"""Fixtures: jobs that end with their test."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator

import pytest
from lab import Job

for name in [n for n in os.environ if n.startswith("TRAINMASTER_") and n != "TRAINMASTER_BIN"]:
    del os.environ[name]


@pytest.fixture(autouse=True)
def _batches_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests count batches: a master that is slow to answer must not make one shorter."""
    monkeypatch.setattr("trainmaster.client._ANSWER", 60.0)


@pytest.fixture
def job(tmp_path: pathlib.Path) -> Iterator[Callable[..., Job]]:
    """Start a master: job(*flags)."""
    jobs: list[Job] = []

    def start(*flags: str) -> Job:
        jobs.append(Job(tmp_path / f"job-{len(jobs)}", *flags))
        return jobs[-1]

    yield start
    for j in jobs:
        j.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the closing line of the other tiers. A skipped test fails the run if REQUIRE is all, as there."""
    stats = terminalreporter.stats
    passed, failed, skipped = (sum(len(stats.get(k, ())) for k in kinds) for kinds in (("passed",), ("failed", "error"), ("skipped",)))
    terminalreporter.write_line(f"{passed} passed, {failed} failed, {skipped} skipped")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """See above."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == 0 and os.environ.get("REQUIRE") == "all" and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
