"""Tests of batch scaling."""

import unittest

from recipes.scaling import split_batches, with_spares


class ScalingTest(unittest.TestCase):
    """Edge cases of spares and batches."""

    def test_spares_are_capped(self):
        """A very large order gets the cap and no more."""
        self.assertEqual(with_spares(1000), 1015)

    def test_small_dough_is_raised(self):
        """A tiny dough is raised to the smallest the mixer can take."""
        self.assertEqual(split_batches(1.0), [7.5])


if __name__ == "__main__":
    unittest.main()
