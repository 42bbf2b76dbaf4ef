"""Classifiers of the paper's experiments."""

from equipoise.research.models.backbones import create_backbone, list_backbones
from equipoise.research.models.small_cnn import SmallCNN

__all__ = ["SmallCNN", "create_backbone", "list_backbones"]
