"""argv to stages, and the only place that prints."""
