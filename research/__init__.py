"""Experiments outside the wheel: packs of published runs and their figures, coverage, own-comment distillation."""
