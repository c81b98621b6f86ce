"""Chat models: how they are asked, what they cost, and who they are in an episode."""
