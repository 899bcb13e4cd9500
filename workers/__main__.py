"""``python -m workers`` is the ``league`` command."""

from workers.cli import main

main()
