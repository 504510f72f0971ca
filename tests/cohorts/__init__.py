"""Pipelines side by side over one topic, each with the filter of a cohort."""
