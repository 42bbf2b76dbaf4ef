"""The command line: everything that uses typer, and the functions behind its commands."""
