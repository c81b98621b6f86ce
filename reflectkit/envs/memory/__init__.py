"""Memory construction, after Mem-α (arXiv 2509.25911)."""
