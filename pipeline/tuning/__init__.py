"""The tuning report: what is looked at, the figures in words and as JSON, and the page with its pictures."""
