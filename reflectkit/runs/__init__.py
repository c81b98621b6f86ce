"""Run folders: identity, locks, checksums."""
