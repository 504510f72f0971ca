"""The `tidemark` command."""

from pipeline.cli.app import main

__all__ = ["main"]
