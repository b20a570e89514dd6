import unittest

from intervals import covered, merged


class Hidden(unittest.TestCase):
    def test_an_interval_inside_another_adds_nothing(self):
        self.assertEqual(merged([(1, 10), (2, 3), (4, 5)]), [(1, 10)])

    def test_intervals_that_touch_are_one(self):
        self.assertEqual(merged([(1, 2), (3, 4), (6, 7)]), [(1, 4), (6, 7)])

    def test_nothing_stays_nothing(self):
        self.assertEqual((merged([]), covered([])), ([], 0))

    def test_what_is_given_is_left_alone(self):
        given = [(5, 6), (1, 2)]
        merged(given)
        self.assertEqual(given, [(5, 6), (1, 2)])

    def test_numbers_are_counted_once(self):
        self.assertEqual(covered([(1, 5), (3, 7), (10, 10)]), 8)

    def test_numbers_below_zero(self):
        self.assertEqual((merged([(-3, -1), (0, 2)]), covered([(-3, -1), (0, 2)])), ([(-3, 2)], 6))
