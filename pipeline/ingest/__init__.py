"""Ingestion: readers take messages, and rounds settle them into the lake."""
