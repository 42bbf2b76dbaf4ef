"""A method meets made-up shifts of labelled source data before it is deployed."""
