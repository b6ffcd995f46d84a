"""A trainer of the measurement of killed trainers: it takes a task and keeps it."""

import signal
import sys
import time

from ..client import Client

with Client(sys.argv[1]) as client:
    client.report_dataset(sys.argv[2:])
    works = client._fetch((), 1, wait=False)  # it returns when the master has answered, and the agent keeps a request there
    print(time.monotonic(), flush=True)
    if not works:
        client._fetch((), 1, wait=True)
    print(time.monotonic(), flush=True)
    signal.pause()  # until it is killed
