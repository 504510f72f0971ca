"""Commands that derive decisions again: to choose a band, and to verify what was decided."""
