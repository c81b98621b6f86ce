"""What `run` is made of: recipes' ablations, and the schedule of their steps."""
