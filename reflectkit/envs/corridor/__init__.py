"""The corridor, a toy environment."""

from reflectkit.envs.corridor.env import Corridor as Corridor
