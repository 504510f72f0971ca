"""The wheel, installed where nothing of the project is."""
