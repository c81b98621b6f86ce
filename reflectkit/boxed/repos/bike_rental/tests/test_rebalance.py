"""Tests of the van round."""

import unittest

from tools.rebalance import moves


class MovesTest(unittest.TestCase):
    """The plan stops when moves get small."""

    def test_small_moves_are_left(self):
        """Two bikes are not worth a stop."""
        self.assertEqual(moves({"A": 2, "B": -2}), [])


if __name__ == "__main__":
    unittest.main()
