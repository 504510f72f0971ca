"""The parts that run everything on one machine: a Pub/Sub server, the processes of `tidemark up`, and the
demonstration.

A deployment that uses the real Pub/Sub needs only `services`.
"""
