"""Thin plug-ins for other engines. They may import everything above; nothing imports them."""
