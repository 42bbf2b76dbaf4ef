"""Experiments: a recipe, run cell by cell on one machine or a cluster, with results that can be resumed."""
