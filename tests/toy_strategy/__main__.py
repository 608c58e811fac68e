"""Command line of Scalewise with the flat strategy: `python -m tests.toy_strategy train linear --strategy flat`."""

from scalewise.cli import main

if __name__ == "__main__":
    main()
