"""What `bench` measures: rollouts and updates, and the coverage of the intervals."""
