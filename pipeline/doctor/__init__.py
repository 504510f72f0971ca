"""`tidemark doctor`: looks at everything that the pipeline needs, changes nothing, and says what to do. One file a
subject; `checks.py` lists them."""
