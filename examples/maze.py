"""A maze: find the exit. An environment with choices.

reflectkit rlft --env examples/maze.py:Maze --model tiny --name maze
reflectkit evaluate --env examples/maze.py:Maze --policy results/maze --policy random
"""

import random

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


class Maze:
    """Walk to the exit. Each step costs 0.02, and the exit gives 1."""

    choices, horizon = list(MOVES), 12

    def reset(self, seed):
        chance = random.Random(seed)
        self.cells = {(row, column) for row in range(5) for column in range(5) if chance.random() < 0.9}
        self.place, self.exit = chance.sample(sorted(self.cells), 2)
        return self.text()

    def step(self, choice):
        self.place = self.ahead(choice) if self.ahead(choice) in self.cells else self.place
        done = self.place == self.exit
        return self.text(), 1.0 if done else -0.02, done

    def ahead(self, choice):
        return self.place[0] + MOVES[choice][0], self.place[1] + MOVES[choice][1]

    def text(self):
        down, right = self.exit[0] - self.place[0], self.exit[1] - self.place[1]
        way = f"{abs(down)} {'down' if down > 0 else 'up'}, {abs(right)} {'right' if right > 0 else 'left'}"
        return f"Exit: {way}. Free: {', '.join(choice for choice in MOVES if self.ahead(choice) in self.cells)}."
