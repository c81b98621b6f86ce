"""A frozen lake: a game of Gymnasium, with a text for each state. `gymnasium:ID` plays a registered one as it is.

reflectkit rlft --env examples/lake.py:Lake --model tiny
reflectkit evaluate --env examples/lake.py:Lake --policy results/1_rlft --policy random
"""

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

WAYS = ("left", "down", "right", "up")  # Gymnasium's actions 0 to 3


class Lake(gymnasium.Env):
    """Walk over the ice to the goal. A hole ends the episode."""

    horizon = 16
    action_space = gymnasium.spaces.Discrete(4)
    observation_space = gymnasium.spaces.Text(200)

    def __init__(self, size: int = 4):
        self.size = size

    def reset(self, *, seed=None, options=None):
        self.lake = FrozenLakeEnv(desc=generate_random_map(self.size, seed=seed), is_slippery=False)
        self.lake.reset(seed=seed)
        return self.text(), {}

    def step(self, action):
        _, reward, terminated, truncated, _ = self.lake.step(int(action))
        return self.text(), float(reward), terminated, truncated, {}

    def get_action_meanings(self):
        return WAYS

    def text(self):
        row, column = divmod(int(self.lake.s), self.size)
        ahead = [
            self.tile(row, column - 1),
            self.tile(row + 1, column),
            self.tile(row, column + 1),
            self.tile(row - 1, column),
        ]
        seen = ", ".join(f"{way}: {tile}" for way, tile in zip(WAYS, ahead, strict=True))
        return f"Goal: {self.size - 1 - row} down, {self.size - 1 - column} right. {seen}."

    def tile(self, row, column):
        if not (0 <= row < self.size and 0 <= column < self.size):
            return "edge"
        return {b"H": "hole", b"G": "goal"}.get(bytes(self.lake.desc[row, column]), "ice")
