"""The results of a run as numbers: read, averaged, compared, beside what the paper prints."""
