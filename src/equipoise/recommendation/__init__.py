"""Recommendations: methods are tried on made-up shifts of labelled source data, in the order of a stream."""
