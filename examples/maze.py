"""A maze: find the exit. An environment with choices.

reflectkit rlft --env examples/maze.py:Maze --model tiny
reflectkit evaluate --env examples/maze.py:Maze --policy results/1_rlft --policy random
"""

import random

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


class Maze:
    """Walk to the exit. Each step costs 0.02, and the exit gives 1."""

    horizon = 12

    def __init__(self, size: int = 5, walls: float = 0.1):
        self.size, self.walls = size, walls

    def reset(self, seed):
        generator = random.Random(seed)
        cells = [(row, column) for row in range(self.size) for column in range(self.size)]
        self.place, self.exit = generator.sample(cells, 2)
        self.free = {cell for cell in cells if generator.random() >= self.walls} | {self.place, self.exit}
        return self.text()

    @property
    def choices(self):
        return list(MOVES)

    def step(self, choice):
        down, right = MOVES[choice]
        ahead = (self.place[0] + down, self.place[1] + right)
        self.place = ahead if ahead in self.free else self.place
        done = self.place == self.exit
        return self.text(), 1.0 if done else -0.02, done

    def text(self):
        down, right = self.exit[0] - self.place[0], self.exit[1] - self.place[1]
        ways = [f"{abs(down)} {'down' if down > 0 else 'up'}"] * (down != 0)
        ways += [f"{abs(right)} {'right' if right > 0 else 'left'}"] * (right != 0)
        free = [name for name, (y, x) in MOVES.items() if (self.place[0] + y, self.place[1] + x) in self.free]
        return f"Exit: {', '.join(ways) or 'here'}. Free: {', '.join(free) or 'none'}."
