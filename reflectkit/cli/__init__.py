"""Maps argv to stages; the only place that prints."""
