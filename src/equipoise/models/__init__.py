"""Classifiers of the paper's experiments."""

from equipoise.models.small_cnn import SmallCNN

__all__ = ["SmallCNN"]
