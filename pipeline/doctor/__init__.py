"""`tidemark doctor` checks everything that the pipeline needs, changes nothing, and says what to do. Each module has
the checks of one system: Pub/Sub, Google's REST services, the lake, or Spark. `checks.py` lists all checks."""
