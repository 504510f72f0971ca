"""tidemark's own Pub/Sub, in memory: a seeded model on one thread, and the same model served over gRPC on loopback."""
