"""`tidemark doctor --measure` measures the behaviour of Pub/Sub on a throw-away topic. `experiments.py` collects facts
with `traffic.py`; `facts.py` derives the table and the settings, and writes these."""
