"""`python -m reflectkit`, the same as `reflectkit`."""

from reflectkit.cli.main import entry

if __name__ == "__main__":
    entry()
