"""A code location whose process would not end by itself."""

import os
import signal
import time
from threading import Thread

import dagster as dg

LONGEST_SECONDS = 120

Thread(target=time.sleep, args=(LONGEST_SECONDS,)).start()

if "STUBBORN_ASKED_WHILE_LOADING" in os.environ:
    signal.raise_signal(signal.SIGTERM)

defs = dg.Definitions()
