"""The version of tidemark that runs."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def own_version() -> str:
    """As it is installed; "unknown" where only its files are there."""
    try:
        return version("tidemark")
    except PackageNotFoundError:
        return "unknown"
