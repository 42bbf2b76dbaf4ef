"""Writers of gauges: one file for each program that takes them, which is imported when a writer is made."""
