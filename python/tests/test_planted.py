"""The planted bugs themselves: what counts as found."""

from __future__ import annotations

import pathlib
import subprocess

import planted
import pytest


def test_each_bug_can_be_planted() -> None:
    """A change of the code can leave a bug without its place, and a change of a test a bug without its test."""
    tests = {p.name: p.read_text() for p in pathlib.Path(__file__).parent.glob("test_*.py")}
    for bug in planted.BUGS:
        assert (planted.SOURCE / bug.file).read_text().count(bug.text) == 1, bug
        file, _, name = bug.test.partition("::")
        assert f"def {name.partition('[')[0]}(" in tests[file], bug


@pytest.mark.parametrize(
    ("with_bug", "without", "outcome"),
    [
        (True, None, "caught"),
        (False, None, "NOT CAUGHT"),
        (None, False, "caught"),
        (None, True, "TEST FAILS WITHOUT IT"),
        (None, None, "TIMEOUT, ALSO WITHOUT IT"),
    ],
)
def test_hanging_test_has_found_the_bug_if_it_passes_without(
    monkeypatch: pytest.MonkeyPatch, with_bug: bool | None, without: bool | None, outcome: str
) -> None:
    """None is a timeout."""

    def fails(bug: planted.Bug, limit: float) -> bool:
        found = with_bug if bug.text != bug.bad else without
        if found is None:
            raise subprocess.TimeoutExpired("pytest", limit)
        return found

    monkeypatch.setattr(planted, "fails", fails)
    assert planted.outcome(planted.BUGS[0]) == outcome


def test_timeouts_fail_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(planted, "LIMIT", 0.0)
    with pytest.raises(SystemExit) as e:
        planted.main(planted.BUGS[0].name)
    assert e.value.code
    assert "TIMEOUT, ALSO WITHOUT IT" in capsys.readouterr().out
