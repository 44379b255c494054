"""`python -m oncebridge` is the command line."""

from oncebridge.cli import main

main()
