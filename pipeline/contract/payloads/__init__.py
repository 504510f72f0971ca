"""Decodes a message's attributes and bytes to an object: handles compression, envelope and encoding. The decoder never
raises because of a message's content."""
