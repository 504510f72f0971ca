"""The parts that run everything on one machine: a Pub/Sub server, the processes of `tidemark up`, and the
demonstration.

A deployment on the real Pub/Sub runs only the package `services`.
"""
