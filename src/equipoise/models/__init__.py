"""Classifiers of the paper's experiments."""

from equipoise.models.backbones import create_backbone, list_backbones
from equipoise.models.small_cnn import SmallCNN

__all__ = ["SmallCNN", "create_backbone", "list_backbones"]
