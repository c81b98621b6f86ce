"""What the two training stages, sft and rlft, are made of."""
