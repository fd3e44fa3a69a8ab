"""``python -m specdraft``."""

from specdraft.cli import main

main()
