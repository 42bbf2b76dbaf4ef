"""Classifiers of the paper's experiments."""

from equipoise.research.models.backbones import SmallCNN, create_backbone, list_backbones

__all__ = ["SmallCNN", "create_backbone", "list_backbones"]
