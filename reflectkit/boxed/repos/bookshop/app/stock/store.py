"""Storage without a database: an append-only ledger of JSON lines, one file per month."""

import datetime
import json
import os
import pathlib

ROOT = pathlib.Path("/srv/gilt/ledger")
LOCK_NAME = "ledger.lock"
LOCK_STALE_SECONDS = 45
COMPACT_ABOVE_LINES = 20000


class Locked(Exception):
    """Raised when another program is writing and its lock is still fresh."""


class Ledger:
    """Reads and writes records; the last record of a copy number is the valid one."""

    def __init__(self, root=ROOT):
        self.root = pathlib.Path(root)

    def file_for(self, day):
        """Name of the month's file, e.g. stock-2024-03.jsonl."""
        return self.root / ("stock-%04d-%02d.jsonl" % (day.year, day.month))

    def lock(self, now):
        """Take the lock file; a lock older than 45 seconds is thought forgotten and replaced."""
        path = self.root / LOCK_NAME
        if path.exists() and now - path.stat().st_mtime < LOCK_STALE_SECONDS:
            raise Locked(str(path))
        path.write_text(str(os.getpid()), encoding="ascii")

    def unlock(self):
        """Remove the lock if it is there."""
        (self.root / LOCK_NAME).unlink(missing_ok=True)

    def append(self, record, day=None):
        """Write one record with sorted keys and flush it to the disk before returning."""
        day = day or datetime.date.today()
        with open(self.file_for(day), "a", encoding="ascii") as handle:
            handle.write(json.dumps(record, sort_keys=True) + "\n")
            handle.flush()
            os.fsync(handle.fileno())

    def latest(self):
        """All valid records by copy number; a record with 'gone': true removes the copy."""
        found = {}
        for path in sorted(self.root.glob("stock-*.jsonl")):
            for line in path.read_text(encoding="ascii").splitlines():
                record = json.loads(line)
                if record.get("gone"):
                    found.pop(record["copy"], None)
                else:
                    found[record["copy"]] = record
        return found

    def wants_compaction(self, path):
        """A month's file above twenty thousand lines should be rewritten without dead records."""
        with open(path, encoding="ascii") as handle:
            return sum(1 for _ in handle) > COMPACT_ABOVE_LINES
