"""Environments of other libraries, named by a scheme: `--env SCHEME:REST`."""
