"""`python -m kvoffload`."""

from kvoffload.cli import main

if __name__ == "__main__":
    main()
