"""Jobs, and assets that runs compute."""
