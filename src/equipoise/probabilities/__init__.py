"""A classifier of which only the probabilities are known: its accuracy, its errors by class, its sets."""
