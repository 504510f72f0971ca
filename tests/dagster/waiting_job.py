"""A code location with one job, which runs until it is killed."""

import time

import dagster as dg

LONGEST_SECONDS = 480


@dg.op
def wait() -> None:
    time.sleep(LONGEST_SECONDS)


@dg.job(executor_def=dg.in_process_executor)
def waiting() -> None:
    wait()


defs = dg.Definitions(jobs=[waiting])
