import unittest

from durations import parse


class Hidden(unittest.TestCase):
    def refused(self, text):
        with self.assertRaises(ValueError):
            parse(text)

    def test_fractions(self):
        self.assertEqual((parse("1.5h"), parse("0.5m")), (5400, 30))

    def test_blanks(self):
        self.assertEqual(parse("  1d  2h 3m\t4s "), 93784)

    def test_nothing_is_no_duration(self):
        self.refused("")
        self.refused("   ")

    def test_text_around_it_is_refused(self):
        self.refused("1h and a bit")
        self.refused("x5m")

    def test_a_unit_comes_once(self):
        self.refused("1h 2h")

    def test_the_largest_unit_comes_first(self):
        self.refused("30m 1h")

    def test_a_number_needs_a_unit(self):
        self.refused("90")
        self.refused("1h 30")

    def test_numbers_below_zero_are_refused(self):
        self.refused("-5m")
