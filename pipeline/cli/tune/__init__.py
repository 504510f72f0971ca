"""Commands that compute watermark decisions again, to choose settings or to verify the recorded decisions."""
