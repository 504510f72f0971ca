"""Attach: the watermark of a subscription that somebody else reads."""
