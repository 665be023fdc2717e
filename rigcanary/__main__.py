"""``python -m rigcanary``."""

from rigcanary.cli import main

main()
