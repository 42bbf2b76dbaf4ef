"""The version of the package, read by the build and by state files."""

__version__ = "0.2.0"
