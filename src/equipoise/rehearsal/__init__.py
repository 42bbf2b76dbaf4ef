"""Rehearsals: a method adapts to made-up shifts of labelled source data before it is deployed."""
