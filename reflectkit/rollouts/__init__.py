"""Playing: the interaction loop, batching, and rollouts alongside training."""
