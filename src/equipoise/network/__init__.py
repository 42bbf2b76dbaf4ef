"""The network that adapts, the source model beside it, and their layers."""
