"""Evaluation: statistics, tables, figures and pages of episodes."""
