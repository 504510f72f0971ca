"""Stand-ins for one machine: a Pub/Sub server, the processes of `tidemark up`, and the demonstration.

A deployment that uses the real Pub/Sub needs only `services.spark_connect` and `services.ownership`.
"""
