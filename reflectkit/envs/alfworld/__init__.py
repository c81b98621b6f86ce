"""Text games of household tasks, played by the alfworld package's own engine."""
