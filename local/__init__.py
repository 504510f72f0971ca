"""Stand-ins for one machine: a Pub/Sub server, the processes of `tidemark up`, and the demonstration.

A deployment on the service uses only `services.spark_connect` and `services.ownership`.
"""
