"""`tidemark doctor --measure`: what Pub/Sub does, found out on a throw-away topic. `experiments.py` finds facts with
`traffic.py`, `judging.py` compares them with what the method expects, `place.py` makes and removes what is used."""
