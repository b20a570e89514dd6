"""A cache with a maximum number of entries: it drops the entry that was unused for the longest time."""


class Cache:
    """Keeps at most `room` entries. Both `get` and `put` use an entry."""

    def __init__(self, room):
        self.room = room
        self.hits = self.misses = 0
        self._entries = {}

    def get(self, key, default=None):
        """The value of a key, or the default. A value may be None."""
        value = self._entries.get(key)
        if value:
            self.hits += 1
            return value
        self.misses += 1
        return default

    def put(self, key, value):
        """Stores a value. If the cache is full, drops one other entry."""
        if len(self._entries) >= self.room:
            self._entries.pop(next(iter(self._entries)))
        self._entries[key] = value

    def __len__(self):
        return len(self._entries)
