"""The contract between methods and adapters: the path of a batch, and the state."""
