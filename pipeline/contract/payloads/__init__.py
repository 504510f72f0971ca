"""Payloads: from a message's attributes and bytes to an object, by its compression, envelope and encoding. Nothing in
here raises for what a message contains."""
