"""write_records: the files are what the program reads, and appear when they are complete."""

from __future__ import annotations

import pathlib
import struct
import subprocess
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


def test_failure_leaves_no_file(tmp_path: pathlib.Path) -> None:
    def records() -> Iterator[bytes]:
        yield b"a"
        raise KeyError("source")

    with pytest.raises(KeyError):
        tm.write_records(tmp_path / "x", records(), shards=2)
    with pytest.raises(ValueError, match="expected at least a record for each of the 2 shards, found 1"):
        tm.write_records(tmp_path / "x", [b"a"], shards=2)
    with pytest.raises(TypeError, match="expected bytes, found str"):
        tm.write_records(tmp_path / "x", ["a"], shards=1)  # type: ignore[list-item]
    table: Any = np.zeros((2, 2), np.float32)
    bad: list[Any] = [7, [1, 2], table.T]
    for record in bad:
        with pytest.raises(TypeError, match=f"record 1: expected bytes, found {type(record).__name__}: encode it"):
            tm.write_records(tmp_path / "x", [table, record], shards=1)
    with pytest.raises(ValueError, match="shards: expected a whole number from 1 to 99999, found 0"):
        tm.write_records(tmp_path / "x", [b"a"], shards=0)
    with pytest.raises(ValueError, match="chunk_bytes: expected a whole number of at least 1, found -1"):
        tm.write_records(tmp_path / "x", [b"a"], shards=1, chunk_bytes=-1)
    assert list(tmp_path.iterdir()) == []


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
