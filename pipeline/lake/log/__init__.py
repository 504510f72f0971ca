"""The tracking log: numbered, create-only entries, and the archives that old ones move to."""
