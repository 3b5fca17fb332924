"""``python -m ikno``."""

from ikno.cli import main

main()
