"""The `tidemark` command: its subcommands, their options, and their output."""

import os
import signal


def main() -> None:
    """Import and run the command. Ctrl-C during the import ends the process silently, with exit code 130."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # a KeyboardInterrupt is lost in some imports
    from tidemark.pipeline.cli.app import main

    main()


__all__ = ["main"]
