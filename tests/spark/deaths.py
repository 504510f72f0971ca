"""Deaths that a test ordains: a process kills itself, once at each step that the test names."""

import os
import signal
from pathlib import Path


def deaths(lake: Path) -> Path:
    """The folder with a file for each death that is to come; one that came is called `… done`."""
    return lake.with_name(f"{lake.name}-deaths")


def ordain(lake: Path, *steps: str) -> None:
    deaths(lake).mkdir()
    for step in steps:
        (deaths(lake) / step).touch()


def maybe_die(lake: Path, step: str) -> None:
    """Be killed here, if it is ordained and has not come yet."""
    try:
        (deaths(lake) / step).rename(deaths(lake) / f"{step} done")  # one of any number of workers is first
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
