"""Write flights as RecordIO files: records.py FLIGHTS.json DIRECTORY. Each record is a flight in JSON, and every fifth flight is in the test data."""

import json
import pathlib
import random
import sys

import trainmaster as tm


def main() -> None:
    """Write train-* and test-* into the directory."""
    source, directory = map(pathlib.Path, sys.argv[1:])
    records = [json.dumps(flight).encode() for flight in json.loads(source.read_text())]
    random.Random(1).shuffle(records)  # the flights are in the order of their dates
    fifth = len(records) // 5
    tm.write_records(directory / "test", records[:fifth], shards=1)
    tm.write_records(directory / "train", records[fifth:], shards=4, chunk_bytes=1 << 15)


if __name__ == "__main__":
    main()
