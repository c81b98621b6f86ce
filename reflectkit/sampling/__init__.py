"""Samplers: prompt ids in, sampled ids and log-probabilities out."""
