"""The tracking log: numbered, create-only entries, and the archives of old entries."""
