"""The chaos test: the whole pipeline on real parts, with faults at moments that a seed tells, and then the truth, row
by row. `make chaos`, or `python -m tests.chaos --help`; docs/inside/chaos.md says how its summary is read."""
