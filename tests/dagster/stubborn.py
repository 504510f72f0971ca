"""A code location whose process would not end by itself."""

import time
from threading import Thread

import dagster as dg

LONGEST_SECONDS = 120

Thread(target=time.sleep, args=(LONGEST_SECONDS,)).start()

defs = dg.Definitions()
