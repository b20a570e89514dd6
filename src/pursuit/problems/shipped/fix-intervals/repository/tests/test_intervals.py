import unittest

from intervals import covered, merged


class Visible(unittest.TestCase):
    def test_overlapping_intervals_are_one(self):
        self.assertEqual(merged([(1, 4), (3, 8), (12, 15)]), [(1, 8), (12, 15)])

    def test_the_order_does_not_matter(self):
        self.assertEqual(merged([(12, 15), (3, 8), (1, 4)]), [(1, 8), (12, 15)])

    def test_both_ends_count(self):
        self.assertEqual(covered([(1, 3)]), 3)
