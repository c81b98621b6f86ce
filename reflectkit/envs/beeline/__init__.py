"""BeelineBench: a policy ranks the open states of a best-first search."""
