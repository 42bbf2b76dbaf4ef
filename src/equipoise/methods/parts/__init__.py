"""Parts that several methods share: a file here has two users or more."""
