"""Closed intervals of whole numbers, as pairs `(first, last)`."""


def merged(intervals):
    """The same numbers in as few intervals as possible, sorted. Adjacent ones such as (1, 2), (3, 4) become one."""
    found = []
    for first, last in intervals:
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def covered(intervals):
    """The number of numbers in at least one of the intervals."""
    return sum(last - first for first, last in merged(intervals))
