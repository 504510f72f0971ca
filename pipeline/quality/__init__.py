"""What is late, missed, stale or lost, told from the lake alone."""
