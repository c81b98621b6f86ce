"""Online policy gradient: rows, returns, losses, the learner, checkpoints and the loop."""
