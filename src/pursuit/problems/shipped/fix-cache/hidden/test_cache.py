import unittest

from cache import Cache


class Hidden(unittest.TestCase):
    def test_a_value_may_be_false(self):
        cache = Cache(2)
        cache.put("zero", 0)
        self.assertEqual((cache.get("zero", 5), cache.hits), (0, 1))

    def test_a_value_may_be_none(self):
        cache = Cache(2)
        cache.put("none", None)
        self.assertIsNone(cache.get("none", 5))
        self.assertEqual((cache.hits, cache.misses), (1, 0))

    def test_a_new_value_of_a_key_needs_no_room(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.put("b", 3)
        self.assertEqual((len(cache), cache.get("a"), cache.get("b")), (2, 1, 3))

    def test_a_new_value_is_a_use(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.put("a", 3)
        cache.put("c", 4)
        self.assertEqual((cache.get("a"), cache.get("b")), (3, None))

    def test_a_miss_is_no_use(self):
        cache = Cache(1)
        cache.put("a", 1)
        cache.get("b")
        self.assertEqual(cache.get("a"), 1)

    def test_a_cache_without_room_keeps_nothing(self):
        cache = Cache(0)
        cache.put("a", 1)
        self.assertEqual((len(cache), cache.get("a")), (0, None))
