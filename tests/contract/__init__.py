"""Tests of the message contract."""
