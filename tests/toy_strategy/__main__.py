"""Command line of Scalewise with the flat strategy: `python -m tests.toy_strategy train linear --strategy flat`."""

from scalewise.cli import main
from tests.short_visits import shortened

if __name__ == "__main__":
    with shortened():
        main()
