"""tidemark's own in-memory Pub/Sub: a seeded, single-threaded model, and a gRPC server for it on loopback."""
