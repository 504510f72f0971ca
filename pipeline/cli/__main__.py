"""`python -m pipeline.cli` is `tidemark`."""

from pipeline.cli.app import main

main()
