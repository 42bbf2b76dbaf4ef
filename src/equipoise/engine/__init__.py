"""Engines that run a step: eager, or captured as CUDA graphs."""
