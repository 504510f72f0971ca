"""`tidemark doctor` checks everything that the pipeline needs, changes nothing, and says what to do. One file for each
subject; `checks.py` lists the checks."""
