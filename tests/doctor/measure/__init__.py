"""`tidemark doctor --measure`, on both emulators and on services that deviate."""
