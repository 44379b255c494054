"""Explore every scenario: `python -m exploration`, and with `--long` one fault more."""

import sys

from exploration.explorer import main

sys.exit(main(sys.argv[1:]))
