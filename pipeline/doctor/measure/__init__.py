"""`tidemark doctor --measure` measures the behaviour of Pub/Sub on a throw-away topic. `experiments.py` collects facts,
using `traffic.py`. `facts.py` makes a table of them, derives settings and writes these into the settings file."""
