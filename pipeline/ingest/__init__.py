"""Ingestion: readers *take* messages (pull, judge, write), and rounds *settle* them (make visible, acknowledge)."""
