"""`python -m tidemark.pipeline.cli` is `tidemark`."""

from tidemark.pipeline.cli.app import main

main()
