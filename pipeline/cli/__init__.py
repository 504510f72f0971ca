"""The `tidemark` command."""

import gc

gc.disable()  # modules are no garbage, and looking for it takes a fifth of the command's start

from tidemark.pipeline.cli.app import main  # noqa: E402

gc.enable()

__all__ = ["main"]
