"""Agents: scripted players, the two players (a reflector and a policy), and people."""
