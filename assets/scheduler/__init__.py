"""Which windows a run computes, when it may begin, and which runs have died."""
