"""Load, build, score and decode: torch lives here, in agents/ and in rl/."""
