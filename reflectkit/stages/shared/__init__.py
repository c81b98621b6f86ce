"""Code that several commands share: settings by topic, players, tables and figures."""
