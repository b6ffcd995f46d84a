"""write_records: the files are what the program reads, and appear when they are complete."""

from __future__ import annotations

import os
import pathlib
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from lab import MASTER

import trainmaster as tm


def test_the_program_reads_what_was_written(tmp_path: pathlib.Path) -> None:
    records: list[bytes | bytearray | memoryview] = [b"record %d" % i for i in range(10)]
    records += [b"", memoryview(b"view"), bytearray(b"array")]
    paths = tm.write_records(tmp_path / "deep" / "x", iter(records), shards=3, chunk_bytes=40)
    assert [pathlib.Path(p).name for p in paths] == [f"x-{i:05d}-of-00003" for i in range(3)]
    for i, path in enumerate(paths):
        shown = subprocess.run([MASTER, "recordio", "cat", path], capture_output=True, check=True).stdout
        assert shown == b"".join(bytes(r) + b"\n" for r in records[i::3])


def test_chunks_are_bounded(tmp_path: pathlib.Path) -> None:
    (path,) = tm.write_records(tmp_path / "x", [b"12345678"] * 5 + [b"x" * 100], shards=1, chunk_bytes=24)
    data, counts = pathlib.Path(path).read_bytes(), []
    while data:
        _, _, _, size, n = struct.unpack_from("<5I", data)
        counts.append(n)
        data = data[20 + size :]
    assert counts == [2, 2, 1, 1]
    subprocess.run([MASTER, "recordio", "verify", path], capture_output=True, check=True)


def test_existing_files_are_kept(tmp_path: pathlib.Path) -> None:
    tm.write_records(tmp_path / "x", [b"a"], shards=1)
    with pytest.raises(FileExistsError, match="expected no such file, found one"):
        tm.write_records(tmp_path / "x", [b"b"], shards=1)
    tm.write_records(tmp_path / "x", [b"b"], shards=1, force=True)


def test_no_files_of_another_number_of_shards_stay(tmp_path: pathlib.Path) -> None:
    """F530: a glob of the dataset has one set of files."""
    tm.write_records(tmp_path / "x", [b"a", b"b"], shards=2)
    others = [tmp_path / name for name in ("xy-00000-of-00002", "x-00000-of-2", "x-1")]
    for other in others:
        other.touch()
    with pytest.raises(FileExistsError, match="x-00000-of-00002: expected no such file, found one"):
        tm.write_records(tmp_path / "x", [b"c", b"d", b"e"], shards=3)
    with pytest.raises(ValueError, match="fewer shards"):
        tm.write_records(tmp_path / "x", [b"c"], shards=3, force=True)
    assert sorted(tm.read_records(tmp_path / "x-*-of-?????")) == [b"a", b"b"]
    tm.write_records(tmp_path / "x", [b"c", b"d", b"e"], shards=3, force=True)
    assert sorted(tm.read_records(tmp_path / "x-*-of-?????")) == [b"c", b"d", b"e"]
    assert list(tm.read_records([tmp_path / "x-00001-of-00003", f"{tmp_path}/x-00000-of-0000?"])) == [b"d", b"c"]
    tm.write_records(tmp_path / "x", [b"f"], shards=1, force=True)
    assert sorted(tmp_path.iterdir()) == sorted([*others, tmp_path / "x-00000-of-00001"])


def test_bad_input_is_explained(tmp_path: pathlib.Path) -> None:
    for prefix in ("", f"{tmp_path}/", tmp_path / "x*", "s3://bucket/x"):
        with pytest.raises(ValueError, match=r"prefix: expected a (local )?path"):
            tm.write_records(prefix, [b"a"], shards=1)
    with pytest.raises(TypeError, match="prefix: expected a path, found None"):
        tm.write_records(None, [b"a"], shards=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="records: expected an iterable of bytes, found None"):
        tm.write_records(tmp_path / "x", None, shards=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="records: expected an iterable of bytes, found bytes: put it into a list"):
        tm.write_records(tmp_path / "x", b"a", shards=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="paths: expected a path, found 7"):
        list(tm.read_records([tmp_path / "x", 7]))  # type: ignore[list-item]
    os.mkfifo(tmp_path / "pipe")
    for path, found in ((tmp_path, "a directory"), (tmp_path / "pipe", "a device or pipe")):
        with pytest.raises(tm.errors.InvalidError, match=f"expected a file, found {found}: name files"):
            list(tm.read_records(path))
    with pytest.raises(tm.Error, match="expected the region of the bucket") as e:
        list(tm.read_records("s3://bucket/x"))
    assert not isinstance(e.value, tm.errors.DamagedError)
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize(
    ("program", "words"),
    [("#!/bin/sh\n", "expected the program of trainmaster, found one that writes no records"), ("no program", "found none .Exec format error.")],
)
def test_other_program_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, program: str, words: str) -> None:
    (path,) = tm.write_records(tmp_path / "x", [b"a"], shards=1)
    other = tmp_path / "program"
    other.write_text(program)
    other.chmod(0o755)
    monkeypatch.setenv("TRAINMASTER_BIN", str(other))
    with pytest.raises(tm.errors.AgentError, match=words):
        list(tm.read_records(path))


def test_failure_leaves_no_file(tmp_path: pathlib.Path) -> None:
    def records() -> Iterator[bytes]:
        yield b"a"
        raise KeyError("source")

    with pytest.raises(KeyError):
        tm.write_records(tmp_path / "x", records(), shards=2)
    with pytest.raises(ValueError, match="expected at least a record for each of the 2 shards, found 1"):
        tm.write_records(tmp_path / "x", [b"a"], shards=2)
    with pytest.raises(TypeError, match="expected bytes or contiguous memory, found str: encode it"):
        tm.write_records(tmp_path / "x", ["a"], shards=1)  # type: ignore[list-item]
    table: Any = np.zeros((2, 2), np.float32)
    bad: list[Any] = [7, [1, 2], table.T]
    for record in bad:
        with pytest.raises(TypeError, match=f"record 1: expected bytes or contiguous memory, found {type(record).__name__}: encode it"):
            tm.write_records(tmp_path / "x", [table, record], shards=1)
    with pytest.raises(ValueError, match="shards: expected a whole number from 1 to 99999, found 0"):
        tm.write_records(tmp_path / "x", [b"a"], shards=0)
    with pytest.raises(ValueError, match="chunk_bytes: expected a whole number of at least 1, found -1"):
        tm.write_records(tmp_path / "x", [b"a"], shards=1, chunk_bytes=-1)
    assert list(tmp_path.iterdir()) == []


def test_killed_writer_leaves_no_file_of_the_dataset(tmp_path: pathlib.Path) -> None:
    """F508: the next writer replaces what it has left. Two writers at the same time are refused."""
    script = f"""
import os, sys
import trainmaster as tm
def records():
    yield b"a"
    print(flush=True)
    sys.stdin.read()
tm.write_records({str(tmp_path / "x")!r}, records(), shards=1)
"""
    writer = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert writer.stdout
    writer.stdout.readline()
    for shards in (1, 2):
        with pytest.raises(FileExistsError, match="expected no other writer of these files, found one"):
            tm.write_records(tmp_path / "x", [b"b"] * 2, shards=shards)
    writer.kill()
    writer.communicate()
    assert len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.glob("x-*"))
    tm.write_records(tmp_path / "x", [b"b"], shards=1)
    assert [p.name for p in tmp_path.iterdir()] == ["x-00000-of-00001"]
    assert list(tm.read_records(tmp_path / "x-*")) == [b"b"]


def test_file_that_another_writer_has_just_completed_is_kept(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F533: it was opened under its temporary name, and has its name when it is locked."""

    def complete(_file: object, _how: int) -> None:
        (tmp_path / ".x-00000.tmp").replace(tmp_path / "x-00000-of-00001")

    (tmp_path / ".x-00000.tmp").write_bytes(b"complete")
    monkeypatch.setattr("trainmaster.records.fcntl.flock", complete)
    with pytest.raises(FileExistsError, match="expected no other writer of these files, found one"):
        tm.write_records(tmp_path / "x", [b"b"], shards=1, force=True)
    assert (tmp_path / "x-00000-of-00001").read_bytes() == b"complete"


def test_read_records(tmp_path: pathlib.Path) -> None:
    records = [b"record %d" % i for i in range(50)] + [b"", b"\xff\x00", "ä\n".encode()]
    (path,) = tm.write_records(tmp_path / "x", records, shards=1, chunk_bytes=100)
    assert list(tm.read_records(tmp_path / "x-*")) == records
    assert next(tm.read_records(path)) == b"record 0"  # a reader that is left ends its process
    content = bytearray(pathlib.Path(path).read_bytes())
    content[-1] ^= 1
    pathlib.Path(path).write_bytes(content)
    with pytest.raises(tm.errors.DamagedError, match="checksum"):
        list(tm.read_records(path))
    with pytest.raises(tm.errors.NotFoundError, match="expected files with this name, found none"):
        list(tm.read_records(tmp_path / "y-*"))
