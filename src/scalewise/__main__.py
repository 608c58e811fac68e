"""`python -m scalewise`, also under torchrun."""

from scalewise.cli import main

main()
