"""`python -m reflectkit`, and `accelerate launch -m reflectkit rlft …`."""

from reflectkit.cli.main import entry

if __name__ == "__main__":
    entry()
