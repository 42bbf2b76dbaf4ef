"""Streams of images: gathered batch by batch, corrupted on the way, or of no class."""
