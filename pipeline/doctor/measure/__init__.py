"""Measures how Pub/Sub behaves, on a throw-away topic, for `tidemark doctor --measure`. `experiments.py` collects
facts, using `traffic.py`. `facts.py` formats the facts as a table, and derives settings that it can write into the
settings file."""
