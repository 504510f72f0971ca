"""`make compare`: the same traffic by each watermark rule, replayed side by side."""
