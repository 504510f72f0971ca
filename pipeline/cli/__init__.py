"""The `tidemark` command."""

from tidemark.pipeline.cli.app import main

__all__ = ["main"]
