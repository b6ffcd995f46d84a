"""Writes datasets, as RecordIO files in the first layout (recordio/FORMAT.md), and reads files outside of a job."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import glob
import json
import os
import re
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, BinaryIO

from . import _check, errors
from ._agent import binary, check_version
from ._check import whole
from ._version import MASTER

_HEADER = struct.Struct("<5I")  # magic, CRC-32, compressor, size, records
_LENGTH = struct.Struct("<I")
_MAGIC = 0x01020304
_LARGEST = 256 << 20  # a chunk that a reader accepts
_DAMAGE = re.compile(r": byte \d+: ")
Bytes = bytes | bytearray | memoryview


class _Shard:
    """A file in the making."""

    def __init__(self, prefix: str, number: int, shards: int, chunk_bytes: int) -> None:
        self.path, self.chunk_bytes = f"{prefix}-{number:05d}-of-{shards:05d}", chunk_bytes
        directory, name = os.path.split(prefix)
        # No glob of the dataset matches it, and the next writer replaces it, also with another number of shards.
        self.temporary = os.path.join(directory, f".{name}-{number:05d}.tmp")
        self.file: BinaryIO = open(self.temporary, "ab")  # noqa: SIM115 it stays open
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_own = os.path.samestat(os.fstat(self.file.fileno()), os.stat(self.temporary))  # otherwise its writer has just completed it
        except OSError:
            is_own = False
        if not is_own:
            self.file.close()
            raise FileExistsError(f"{self.temporary}: expected no other writer of these files, found one: wait for its end")
        self.file.truncate(0)
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


def write_records(
    prefix: str | os.PathLike[str], records: Iterable[Bytes], shards: int = 8, *, chunk_bytes: int = 1 << 20, force: bool = False
) -> list[str]:
    """Write records to the files PREFIX-00000-of-00008 and so on, one after another, and return their paths.

    The files appear when all of them are complete. Files of this prefix with any number of shards are refused. With `force`, they are then
    replaced or removed. The master splits a dataset into tasks of chunks: write enough chunks for all trainers.
    """
    prefix = _check.path("prefix", prefix)
    name = os.path.basename(prefix)
    if not name or glob.has_magic(name) or "://" in prefix:
        raise ValueError(f"prefix: expected a local path with a file name without *, ? and [, found {prefix!r}")
    shards, chunk_bytes = whole("shards", shards, 1, 99999), whole("chunk_bytes", chunk_bytes, 1)
    if isinstance(records, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"records: expected an iterable of bytes, found {type(records).__name__}: put it into a list")
    _check.several("records", records, "an iterable of bytes")
    os.makedirs(os.path.dirname(os.path.abspath(prefix)), exist_ok=True)
    made: list[_Shard] = []
    try:
        for i in range(shards):
            made.append(_Shard(prefix, i, shards, chunk_bytes))  # noqa: PERF401 a failure leaves the others to be removed
        digits = "[0-9]" * 5
        old = set(glob.glob(f"{glob.escape(prefix)}-{digits}-of-{digits}"))
        if old and not force:
            raise FileExistsError(f"{min(old)}: expected no such file, found one: choose another prefix, or give force=True")
        count = 0
        for record in records:
            if not _is_bytes(record):
                found = type(record).__name__
                raise TypeError(f"record {count}: expected bytes or contiguous memory, found {found}: encode it")
            made[count % shards].add(record)
            count += 1
        if count < shards:
            raise ValueError(f"{prefix}: expected at least a record for each of the {shards} shards, found {count}: write fewer shards")
        for shard in made:
            shard.finish()
        for shard in made:
            os.replace(shard.temporary, shard.path)
        paths = [shard.path for shard in made]
        for path in old.difference(paths):
            os.unlink(path)
        return paths
    finally:
        for shard in made:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(shard.temporary)
            shard.file.close()  # it unlocks


def _is_bytes(record: object) -> bool:
    try:
        return memoryview(record).c_contiguous  # type: ignore[arg-type]
    except TypeError:
        return False


def read_records(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Iterator[bytes]:
    """Iterate over the records of paths and globs, outside of a job: for test data. The program reads them, in any format of a dataset."""
    names = [name for pattern in _check.paths("paths", paths) for name in sorted(glob.glob(pattern)) or [pattern]]
    for name in names:
        if "://" not in name and not os.path.exists(name):
            raise errors.NotFoundError(f"{name}: expected files with this name, found none")
        if "://" not in name and not os.path.isfile(name):
            raise errors.InvalidError(f"{name}: expected a file, found {'a directory' if os.path.isdir(name) else 'a device or pipe'}: name files")
    with tempfile.TemporaryFile() as messages:
        command = [binary(), "recordio", "cat", "-o", "json", *names]
        with _started(command, messages) as process:
            assert process.stdout
            is_list = False
            try:
                for line in process.stdout:
                    is_list = is_list or line.startswith(b"[")
                    if line.startswith(b"  {"):  # a record of the list
                        fields = json.loads(line.rstrip().rstrip(b","))
                        yield base64.b64decode(fields["base64"]) if "base64" in fields else fields["text"].encode()
            except GeneratorExit:
                process.kill()
                raise
        if process.returncode:
            messages.seek(0)
            text = messages.read().decode(errors="replace").strip()
            text = re.sub(r"^\S+ recordio cat: ", "", text)
            raise (errors.DamagedError if _DAMAGE.search(text) else errors.Error)(text)
        if not is_list:
            raise errors.AgentError(f"{command[0]}: expected the program of trainmaster, found one that writes no records: unset TRAINMASTER_BIN")


def _started(command: list[str], messages: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the program, which must be of the version of this package."""
    program = command[0]
    try:
        if MASTER:
            said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
            check_version(said.rpartition(" ")[2].strip(), program)
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages)
    except OSError as e:
        raise errors.AgentError(f"{program}: expected the program of trainmaster, found none ({e.strerror}): unset TRAINMASTER_BIN") from e
