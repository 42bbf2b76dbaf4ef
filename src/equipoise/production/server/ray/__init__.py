"""The server on a Ray cluster."""
