"""How messages get into the lake: they are taken, then settled, in rounds."""
