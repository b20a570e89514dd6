import unittest

from durations import parse


class Visible(unittest.TestCase):
    def test_parts_are_added(self):
        self.assertEqual(parse("1h30m"), 5400)

    def test_days(self):
        self.assertEqual(parse("2d 4h"), 187200)

    def test_what_is_no_duration_is_refused(self):
        with self.assertRaises(ValueError):
            parse("soon")
