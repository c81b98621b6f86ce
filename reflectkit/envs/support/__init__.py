"""An online shop's service desk: a domain of our own for agents with tools and a user, in the
manner of tau-bench.
"""
