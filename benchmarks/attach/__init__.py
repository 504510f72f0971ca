"""Attach beside readers of base that are clients of Google's in Java and in Go, and the checker that judges it."""
