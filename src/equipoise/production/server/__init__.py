"""Serving: a classifier that adapts behind an HTTP door, a state for each named stream."""
