"""ALFWorld: household tasks as text games, played by the real engine (packages alfworld and
textworld) in child processes.
"""
