"""Writes datasets, as RecordIO files in the first layout (recordio/FORMAT.md), and reads files outside of a job."""

from __future__ import annotations

import base64
import contextlib
import glob
import json
import os
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from . import errors
from ._agent import binary
from ._check import whole

_HEADER = struct.Struct("<5I")  # magic, CRC-32, compressor, size, records
_LENGTH = struct.Struct("<I")
_MAGIC = 0x01020304
_LARGEST = 256 << 20  # a chunk that a reader accepts
Bytes = bytes | bytearray | memoryview


class _Shard:
    """A file in the making."""

    def __init__(self, path: str, chunk_bytes: int) -> None:
        self.path, self.chunk_bytes = path, chunk_bytes
        self.temporary = f"{path}.tmp-{os.getpid()}"
        self.file: BinaryIO = open(self.temporary, "wb")  # noqa: SIM115 it stays open
        self.parts: list[Bytes] = []
        self.size = self.records = self.total = 0

    def add(self, record: Bytes) -> None:
        n = memoryview(record).nbytes
        if n + 4 > _LARGEST:
            raise ValueError(f"record {self.total} of {self.path}: expected at most {_LARGEST - 4} bytes, found {n}: split it")
        if self.records and self.size + 4 + n > self.chunk_bytes:
            self.flush()
        self.parts += (_LENGTH.pack(n), record)
        self.size += 4 + n
        self.records += 1
        self.total += 1

    def flush(self) -> None:
        if not self.records:
            return
        payload = b"".join(self.parts)
        self.file.write(_HEADER.pack(_MAGIC, zlib.crc32(payload), 0, len(payload), self.records) + payload)
        self.parts, self.size, self.records = [], 0, 0

    def finish(self) -> None:
        self.flush()
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()


def write_records(
    prefix: str | os.PathLike[str], records: Iterable[Bytes], shards: int = 8, *, chunk_bytes: int = 1 << 20, force: bool = False
) -> list[str]:
    """Write records to the files PREFIX-00000-of-00008 and so on, one after another, and return their paths.

    The files appear when all of them are complete. Existing files are kept unless `force` is given. The master splits a dataset
    into tasks of chunks: write enough chunks for all trainers.
    """
    shards, chunk_bytes = whole("shards", shards, 1, 99999), whole("chunk_bytes", chunk_bytes, 1)
    paths = [f"{os.fspath(prefix)}-{i:05d}-of-{shards:05d}" for i in range(shards)]
    for path in paths:
        if os.path.exists(path) and not force:
            raise FileExistsError(f"{path}: expected no such file, found one: choose another prefix, or give force=True")
    os.makedirs(os.path.dirname(os.path.abspath(paths[0])), exist_ok=True)
    made: list[_Shard] = []
    try:
        for path in paths:
            made.append(_Shard(path, chunk_bytes))  # noqa: PERF401 a failure leaves the others to be removed
        count = 0
        for record in records:
            if not _is_bytes(record):
                raise TypeError(f"record {count}: expected bytes, found {type(record).__name__}: encode it")
            made[count % shards].add(record)
            count += 1
        if count < shards:
            raise ValueError(f"{prefix}: expected at least a record for each of the {shards} shards, found {count}: write fewer shards")
        for shard in made:
            shard.finish()
        for shard in made:
            os.replace(shard.temporary, shard.path)
    except BaseException:
        for shard in made:
            shard.file.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(shard.temporary)
        raise
    return paths


def _is_bytes(record: object) -> bool:
    try:
        return memoryview(record).c_contiguous  # type: ignore[arg-type]
    except TypeError:
        return False


def read_records(paths: str | os.PathLike[str]) -> Iterator[bytes]:
    """Iterate over the records of the files of a glob, outside of a job: for test data. The program reads them, in any format of a dataset."""
    names = sorted(glob.glob(os.fspath(paths))) or [os.fspath(paths)]
    if "://" not in names[0] and not os.path.exists(names[0]):
        raise errors.NotFoundError(f"{names[0]}: expected files with this name, found none")
    with tempfile.TemporaryFile() as messages:
        command = [binary(), "recordio", "cat", "-o", "json", *names]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages) as process:
            assert process.stdout
            try:
                for line in process.stdout:
                    if line.startswith(b"  {"):  # a record of the list
                        fields = json.loads(line.rstrip().rstrip(b","))
                        yield base64.b64decode(fields["base64"]) if "base64" in fields else fields["text"].encode()
            except GeneratorExit:
                process.kill()
                raise
        if process.returncode:
            messages.seek(0)
            raise errors.DamagedError(messages.read().decode(errors="replace").strip().removeprefix("master recordio cat: "))
