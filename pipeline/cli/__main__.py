"""`python -m tidemark.pipeline.cli` runs the same command as `tidemark`."""

from tidemark.pipeline.cli import main

main()
