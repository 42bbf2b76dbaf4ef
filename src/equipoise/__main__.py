"""`python -m equipoise` and the `equipoise` command."""

import sys


def main() -> None:
    """Run the command line; where its packages are missing, the few commands that need none of them."""
    try:
        from equipoise.cli.app import app
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "equipoise":
            raise
        from equipoise.cli.plain import run_plain

        run_plain(sys.argv[1:], str(missing.name))
        return
    app()


if __name__ == "__main__":
    main()
