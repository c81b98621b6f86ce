"""Tests of the dew point table."""

import unittest

from utils.dew_table import dew_point


class DewTest(unittest.TestCase):
    """Known points."""

    def test_saturated_air(self):
        """At full humidity the dew point is the air temperature."""
        self.assertAlmostEqual(dew_point(20, 100), 20)


if __name__ == "__main__":
    unittest.main()
