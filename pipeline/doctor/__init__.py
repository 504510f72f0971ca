"""`tidemark doctor` checks everything that the pipeline needs, changes nothing, and says what to do. Each subject has
its own module; `checks.py` lists all checks."""
