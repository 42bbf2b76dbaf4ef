"""The contract of a method as a suite that any method can be checked by."""
