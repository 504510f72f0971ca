"""Tests of what a monitoring system is told."""
