"""`tidemark doctor --measure`: what Pub/Sub does, found out on a throw-away topic. `experiments.py` finds facts with
`traffic.py`, `judging.py` derives the table and the settings, `place.py` makes and removes what is used."""
