"""Commands that derive decisions again, to choose a band or to verify the recorded decisions."""
