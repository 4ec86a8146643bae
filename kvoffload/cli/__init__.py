"""The command line, thin over the packages beside it."""

from kvoffload.cli.app import main, run

__all__ = ["main", "run"]
