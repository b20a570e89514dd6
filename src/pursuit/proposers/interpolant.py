"""A smooth surface through known values: cubic radial basis functions with a linear tail.

Owns: the fit and its evaluation for many surfaces over the same points at once. Knows nothing of what they mean.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
RIDGE = 1e-9


def distances(rows: Rows, others: Rows) -> Rows:
    """How far each row is from each of the others."""
    squares = (rows * rows).sum(axis=1)[:, None] + (others * others).sum(axis=1)[None, :] - 2 * rows @ others.T
    return np.sqrt(np.maximum(squares, 0.0))


class Interpolant:
    """Passes through the values (a column for each surface) at the points, but for a ridge that keeps it solvable."""

    def __init__(self, points: Rows, values: Rows) -> None:
        count, width = points.shape
        self._middle = points.mean(axis=0)
        spread = float(np.sqrt(((points - self._middle) ** 2).sum(axis=1)).max())
        self._spread = spread if spread > 0 else 1.0
        self._points = (points - self._middle) / self._spread
        tail = np.hstack([np.ones((count, 1)), self._points])
        system = np.zeros((count + width + 1, count + width + 1))
        system[:count, :count] = distances(self._points, self._points) ** 3 + RIDGE * np.eye(count)
        system[:count, count:] = tail
        system[count:, :count] = tail.T
        system[count:, count:] = -RIDGE * np.eye(width + 1)  # points in one plane leave the tail open otherwise
        wanted = np.zeros((count + width + 1, values.shape[1]))
        wanted[:count] = values
        try:
            self._weights = np.linalg.solve(system, wanted)
        except np.linalg.LinAlgError:
            self._weights = np.linalg.lstsq(system, wanted, rcond=None)[0]

    def __call__(self, rows: Rows) -> Rows:
        """The surfaces at the rows."""
        moved = (rows - self._middle) / self._spread
        ones = np.ones((len(rows), 1))
        return np.hstack([distances(moved, self._points) ** 3, ones, moved]) @ self._weights
