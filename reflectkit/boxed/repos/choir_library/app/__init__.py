"""Programs of the choir library.

The package is split by the job that is done at the desk. Lending and giving
back is in ``loans``, the register of rehearsals is in ``attendance``, people
are in ``members``, and the two sub-packages hold the catalogue and the
printed reports.

Every program reads the ledger tables with the helper below, so that a stray
blank line or a comment that somebody typed into a table does no harm.
"""

import csv
from pathlib import Path

LEDGER = Path(__file__).resolve().parent.parent / "ledger"
COMMENT_MARK = "!"


def read_table(name, delimiter=","):
    """Return the rows of a ledger table as dictionaries.

    Lines that begin with an exclamation mark are comments of the librarian
    and are skipped. Spaces around a value are removed.
    """
    path = LEDGER / name
    with path.open(encoding="ascii", newline="") as handle:
        lines = [line for line in handle if line.strip() and not line.startswith(COMMENT_MARK)]
    rows = csv.DictReader(lines, delimiter=delimiter)
    return [{key: value.strip() for key, value in row.items()} for row in rows]
