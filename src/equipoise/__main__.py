"""`python -m equipoise` and the `equipoise` command."""

import sys


def main() -> None:
    """Run the command line; where its packages are missing, exit with a line that says what to install."""
    try:
        from equipoise.cli.app import app
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "equipoise":
            raise
        command = sys.argv[1:2]
        extra = {"": "demo", "demo": "demo", "estimate": "demo", "serve": "serve"}.get(
            "".join(command), "bench"
        )
        sys.exit(
            f"{' '.join(['equipoise', *command])} needs {missing.name}: pip install 'equipoise[{extra}]'"
        )
    app()


if __name__ == "__main__":
    main()
