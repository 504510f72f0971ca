"""Explains a decision in words: each rule's verdict, what pins the watermark, and what would move it."""
