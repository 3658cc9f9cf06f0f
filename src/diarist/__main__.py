"""Lets ``python -m diarist`` run the ``diarist`` command."""

from diarist.cli import main

if __name__ == "__main__":
    main()
