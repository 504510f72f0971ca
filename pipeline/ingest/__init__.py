"""The way of messages into the lake: they are taken, then settled, in rounds."""
