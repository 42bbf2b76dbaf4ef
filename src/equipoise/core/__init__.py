"""The contract between methods and adapters: how a batch is answered and what is kept."""
