"""`python -m equipoise` and the `equipoise` command."""

import sys


def main() -> None:
    """Run the command line, or say what to install where its packages are missing."""
    try:
        from equipoise.cli.app import app
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "equipoise":
            raise
        sys.exit(f"The command line needs {missing.name}: pip install 'equipoise[demo]'")
    app()


if __name__ == "__main__":
    main()
