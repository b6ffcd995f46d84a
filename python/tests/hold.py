"""Run a script whose loops are slow until a file exists: hold.py FILE SCRIPT ARGUMENT...

A test of a job that must not end before something has happened makes the file then. Each process prints a line at its first batch.
"""

from __future__ import annotations

import pathlib
import runpy
import sys
import time
from collections.abc import Iterator
from typing import Any

import trainmaster as tm

FIRST = "first batch in hand"
PAUSE, LATER = 0.5, 2.0  # seconds for each batch: after the first ones, the job must last for as long as the test may take on a slow machine
FIRST_ONES = 150


def main() -> None:
    """Run the script."""
    released, script = pathlib.Path(sys.argv[1]), sys.argv[2]
    batches = tm.torch.DataLoader.__iter__

    def held(self: Any) -> Iterator[Any]:
        for i, batch in enumerate(batches(self)):
            if i == 0:
                print(FIRST, flush=True)
            if not released.exists():
                time.sleep(PAUSE if i < FIRST_ONES else LATER)  # it makes the job long enough, on a machine of any speed
            yield batch

    tm.torch.DataLoader.__iter__ = held  # type: ignore[method-assign]
    sys.argv = sys.argv[2:]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
