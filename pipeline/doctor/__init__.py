"""`tidemark doctor` checks everything that the pipeline needs, changes nothing, and says what to do. A module has the
checks that ask one party: Pub/Sub, Google's REST services, the lake, or Spark; `checks.py` lists all checks."""
