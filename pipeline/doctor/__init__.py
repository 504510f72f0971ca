"""The checks of `tidemark doctor`. They check everything that the pipeline needs, change nothing, and say what to do.
The modules group the checks by subject, such as the lake or Spark. `checks.py` lists all checks."""
