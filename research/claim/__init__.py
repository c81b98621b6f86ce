"""The paper's claim, tested as it was made: research/experiments/claim.md."""
