"""`make compare`: the same traffic by everybody's watermark rule, replayed side by side."""
