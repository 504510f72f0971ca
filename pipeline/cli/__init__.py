"""The `tidemark` command: its subcommands, their options, and their output."""

from tidemark.pipeline.cli.app import main

__all__ = ["main"]
