"""Training: SFT with TRL, and online RL."""
