"""``python -m prorsa`` is ``prorsa``."""

from prorsa.cli import main

main()
