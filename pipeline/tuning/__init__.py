"""The tuning report: its inputs, its figures in words and as JSON, and its page with charts."""
