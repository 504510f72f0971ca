"""The checks of `tidemark doctor`. They check everything that the pipeline needs, change nothing, and say what to do.
Each module has the checks of one system: Pub/Sub, Google's REST services, the lake, or Spark. `checks.py` lists all
checks."""
