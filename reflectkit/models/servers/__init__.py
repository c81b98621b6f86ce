"""Samplers that ask an inference server: token ids in, token ids and log-probabilities out, weights by version."""
