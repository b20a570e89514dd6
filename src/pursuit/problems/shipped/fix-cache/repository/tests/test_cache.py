import unittest

from cache import Cache


class Visible(unittest.TestCase):
    def test_what_was_put_is_there(self):
        cache = Cache(2)
        cache.put("a", 1)
        self.assertEqual((cache.get("a"), cache.get("b"), cache.hits, cache.misses), (1, None, 1, 1))

    def test_an_entry_that_was_used_stays(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.get("a")
        cache.put("c", 3)
        self.assertEqual((cache.get("a"), cache.get("b"), cache.get("c")), (1, None, 3))
