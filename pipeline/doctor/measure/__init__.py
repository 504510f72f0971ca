"""`tidemark doctor --measure` finds out what Pub/Sub does, on a throw-away topic. `experiments.py` finds facts with
`traffic.py`; `facts.py` derives the table and the settings; `writing.py` writes these."""
