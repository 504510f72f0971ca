"""Commands that repeat decisions, to choose a band or to verify the recorded decisions."""
