"""Twelve constrained problems with published optima: eight of CEC2006 (g..) and four of CEC2020-RC (RC..).

Each function returns the value to minimise and its constraints, which hold at or below zero. `x` is the optimum: as
published, or, for RC03 and RC12, where the report gives the value alone, a point that has it.

Formulas: Liang et al., Problem Definitions and Evaluation Criteria for the CEC 2006 Special Session on Constrained
Real-Parameter Optimization; Kumar et al., A Test-suite of Non-Convex Constrained Optimization Problems from the
Real-World (2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Told = tuple[float, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Constrained:
    """One problem; `whole` are the places of its integers."""

    name: str
    evaluate: Callable[..., Told]
    low: Sequence[float]
    high: Sequence[float]
    best: float
    x: Sequence[float]
    whole: frozenset[int] = field(default_factory=frozenset[int])

    @property
    def parameters(self) -> Mapping[str, Mapping[str, Any]]:
        """The space that is searched: x1, x2, …"""
        ends = enumerate(zip(self.low, self.high, strict=True))
        kinds: Mapping[bool, Mapping[str, Any]] = {True: {"kind": "int"}, False: {}}
        return {f"x{at + 1}": {"low": low, "high": high, **kinds[at in self.whole]} for at, (low, high) in ends}


def g01(*x: float) -> Told:
    f = 5 * sum(x[:4]) - 5 * sum(one * one for one in x[:4]) - sum(x[4:])
    return f, (
        2 * x[0] + 2 * x[1] + x[9] + x[10] - 10,
        2 * x[0] + 2 * x[2] + x[9] + x[11] - 10,
        2 * x[1] + 2 * x[2] + x[10] + x[11] - 10,
        -8 * x[0] + x[9],
        -8 * x[1] + x[10],
        -8 * x[2] + x[11],
        -2 * x[3] - x[4] + x[9],
        -2 * x[5] - x[6] + x[10],
        -2 * x[7] - x[8] + x[11],
    )


def g04(x1: float, x2: float, x3: float, x4: float, x5: float) -> Told:
    u = 85.334407 + 0.0056858 * x2 * x5 + 0.0006262 * x1 * x4 - 0.0022053 * x3 * x5
    v = 80.51249 + 0.0071317 * x2 * x5 + 0.0029955 * x1 * x2 + 0.0021813 * x3**2
    w = 9.300961 + 0.0047026 * x3 * x5 + 0.0012547 * x1 * x3 + 0.0019085 * x3 * x4
    f = 5.3578547 * x3**2 + 0.8356891 * x1 * x5 + 37.293239 * x1 - 40792.141
    return f, (u - 92, -u, v - 110, 90 - v, w - 25, 20 - w)


def g06(x1: float, x2: float) -> Told:
    f = (x1 - 10) ** 3 + (x2 - 20) ** 3
    return f, (100 - (x1 - 5) ** 2 - (x2 - 5) ** 2, (x1 - 6) ** 2 + (x2 - 5) ** 2 - 82.81)


def g07(*x: float) -> Told:
    a, b, c, d, e, p, q, r, s, t = x
    f = a**2 + b**2 + a * b - 14 * a - 16 * b + (c - 10) ** 2 + 4 * (d - 5) ** 2 + (e - 3) ** 2 + 2 * (p - 1) ** 2
    f += 5 * q**2 + 7 * (r - 11) ** 2 + 2 * (s - 10) ** 2 + (t - 7) ** 2 + 45
    return f, (
        -105 + 4 * a + 5 * b - 3 * q + 9 * r,
        10 * a - 8 * b - 17 * q + 2 * r,
        -8 * a + 2 * b + 5 * s - 2 * t - 12,
        3 * (a - 2) ** 2 + 4 * (b - 3) ** 2 + 2 * c**2 - 7 * d - 120,
        5 * a**2 + 8 * b + (c - 6) ** 2 - 2 * d - 40,
        a**2 + 2 * (b - 2) ** 2 - 2 * a * b + 14 * e - 6 * p,
        0.5 * (a - 8) ** 2 + 2 * (b - 4) ** 2 + 3 * e**2 - p - 30,
        -3 * a + 6 * b + 12 * (s - 8) ** 2 - 7 * t,
    )


def g08(x1: float, x2: float) -> Told:
    below = x1**3 * (x1 + x2)
    f = -(math.sin(2 * math.pi * x1) ** 3) * math.sin(2 * math.pi * x2) / below if below > 0 else 0.0
    return f, (x1**2 - x2 + 1, 1 - x1 + (x2 - 4) ** 2)


def g09(a: float, b: float, c: float, d: float, e: float, p: float, q: float) -> Told:
    f = (a - 10) ** 2 + 5 * (b - 12) ** 2 + c**4 + 3 * (d - 11) ** 2 + 10 * e**6 + 7 * p**2 + q**4
    f += -4 * p * q - 10 * p - 8 * q
    return f, (
        -127 + 2 * a**2 + 3 * b**4 + c + 4 * d**2 + 5 * e,
        -282 + 7 * a + 3 * b + 10 * c**2 + d - e,
        -196 + 23 * a + b**2 + 6 * p**2 - 8 * q,
        4 * a**2 + b**2 - 3 * a * b + 2 * c**2 + 5 * p - 11 * q,
    )


def g10(*x: float) -> Told:
    a, b, c, d, e, p, q, r = x
    return a + b + c, (
        -1 + 0.0025 * (d + p),
        -1 + 0.0025 * (e + q - d),
        -1 + 0.01 * (r - e),
        -a * p + 833.33252 * d + 100 * a - 83333.333,
        -b * q + 1250 * e + b * d - 1250 * d,
        -c * r + 1_250_000 + c * e - 2500 * e,
    )


def g24(x1: float, x2: float) -> Told:
    return -x1 - x2, (
        -2 * x1**4 + 8 * x1**3 - 8 * x1**2 + x2 - 2,
        -4 * x1**4 + 32 * x1**3 - 88 * x1**2 + 96 * x1 + x2 - 36,
    )


def alkylation(*x: float) -> Told:
    a, b, c, d, e, p, q = x
    f = -1.715 * a - 0.035 * a * p - 4.0565 * c - 10 * b + 0.063 * c * e
    return f, (
        0.0059553571 * p**2 * a + 0.88392857 * c - 0.1175625 * p * a - a,
        1.1088 * a + 0.1303533 * a * p - 0.0066033 * a * p**2 - c,
        6.66173269 * p**2 + 172.39878 * e - 56.596669 * d - 191.20592 * p - 10_000,
        1.08702 * p + 0.32175 * d - 0.03762 * p**2 - e + 56.85075,
        0.006198 * q * d * c + 2462.3121 * b - 25.125634 * b * d - c * d,
        161.18996 * c * d + 5000 * b * d - 489_510 * b - c * d * q,
        0.33 * q - e + 44.333333,
        0.022556 * e - 0.007595 * q - 1,
        0.00061 * c - 0.0005 * a - 1,
        0.819672 * a - c + 0.819672,
        24_500 * b - 250 * b * d - c * d,
        1020.4082 * d * b + 1.2244898 * c * d - 100_000 * b,
        6.25 * a * p + 6.25 * a - 7.625 * c - 100_000,
        1.22 * c - p * a - a + 1,
    )


def synthesis(x1: float, x2: float, x3: float, y1: int, y2: int, y3: int, y4: int) -> Told:
    f = (y1 - 1) ** 2 + (y2 - 1) ** 2 + (y3 - 1) ** 2 - math.log(y4 + 1)
    f += (x1 - 1) ** 22 + (x2 - 2) ** 2 + (x3 - 3) ** 2  # 22 as in the suite, whose optimum has it; the source has 2
    return f, (
        x1 + x2 + x3 + y1 + y2 + y3 - 5,
        y3**2 + x1**2 + x2**2 + x3**2 - 5.5,
        x1 + y1 - 1.2,
        x2 + y2 - 1.8,
        x3 + y3 - 2.5,
        x1 + y4 - 1.2,
        y2**2 + x2**2 - 1.64,
        y3**2 + x3**2 - 4.25,
        y2**2 + x3**2 - 4.64,
    )


def spring(d: float, w: float, n: float) -> Told:
    return d**2 * w * (n + 2), (
        1 - w**3 * n / (71_785 * d**4),
        (4 * w**2 - d * w) / (12_566 * (w * d**3 - d**4)) + 1 / (5_108 * d**2) - 1 if w != d else 1e6,
        1 - 140.45 * d / (w**2 * n),
        (d + w) / 1.5 - 1,
    )


def compressor(length: float, ratio: float, inner: float, x4: float) -> Told:
    f = 8.61e5 * length**0.5 * ratio * inner ** (-2 / 3) * x4**-0.5 + 3.69e4 * inner
    f += 7.72e8 * ratio**0.219 / length - 765.43e6 / length
    return f, (x4 / ratio**2 + 1 / ratio**2 - 1,)


PROBLEMS = (
    Constrained(
        name="g01",
        evaluate=g01,
        low=[0] * 13,
        high=[1] * 9 + [100] * 3 + [1],
        best=-15,
        x=[1] * 9 + [3] * 3 + [1],
    ),
    Constrained(
        name="g04",
        evaluate=g04,
        low=[78, 33, 27, 27, 27],
        high=[102, 45, 45, 45, 45],
        best=-30665.53867178332,
        x=[78, 33, 29.9952560256815985, 45, 36.7758129057882073],
    ),
    Constrained(
        name="g06",
        evaluate=g06,
        low=[13, 0],
        high=[100, 100],
        best=-6961.81387558015,
        x=[14.09500000000000064, 0.8429607892154795668],
    ),
    Constrained(
        name="g07",
        evaluate=g07,
        low=[-10] * 10,
        high=[10] * 10,
        best=24.30620906818,
        x=[
            2.17199634142692,
            2.3636830416034,
            8.77392573913157,
            5.09598443745173,
            0.990654756560493,
            1.43057392853463,
            1.32164415364306,
            9.82872576524495,
            8.2800915887356,
            8.3759266477347,
        ],
    ),
    Constrained(
        name="g08",
        evaluate=g08,
        low=[0, 0],
        high=[10, 10],
        best=-0.0958250414180359,
        x=[1.22797135260752599, 4.24537336612274885],
    ),
    Constrained(
        name="g09",
        evaluate=g09,
        low=[-10] * 7,
        high=[10] * 7,
        best=680.630057374402,
        x=[
            2.33049935147405174,
            1.95137236847114592,
            -0.477541399510615805,
            4.36572624923625874,
            -0.624486959100388983,
            1.03813099410962173,
            1.5942266780671519,
        ],
    ),
    Constrained(
        name="g10",
        evaluate=g10,
        low=[100, 1000, 1000] + [10] * 5,
        high=[10_000] * 3 + [1000] * 5,
        best=7049.24802052867,
        x=[
            579.306685017979589,
            1359.97067807935605,
            5109.97065743133317,
            182.01769963061534,
            295.601173702746792,
            217.982300369384632,
            286.41652592786852,
            395.601173702746735,
        ],
    ),
    Constrained(
        name="g24",
        evaluate=g24,
        low=[0, 0],
        high=[3, 4],
        best=-5.50801327159536,
        x=[2.32952019747762, 3.17849307411774],
    ),
    Constrained(
        name="RC03 alkylation",
        evaluate=alkylation,
        low=[1000, 0, 2000, 0, 0, 0, 0],
        high=[2000, 100, 4000, 100, 100, 20, 200],
        best=-4529.1197395,
        x=[2000, 0, 2576.38642, 0, 58.1606383, 1.25996838, 41.8381287],
    ),
    Constrained(
        name="RC12 synthesis",
        evaluate=synthesis,
        low=[0, 0, 0, 0, 0, 0, 0],
        high=[100, 100, 100, 1, 1, 1, 1],
        whole=frozenset({3, 4, 5, 6}),
        best=2.9248305537,
        x=[0.198309545541, 1.280624847487, 1.954654272281, 1, 0, 0, 1],
    ),
    Constrained(
        name="RC17 spring",
        evaluate=spring,
        low=[0.05, 0.25, 2],
        high=[2, 1.3, 15],
        best=0.012665232788,
        x=[0.051689156131, 0.356720026419, 11.288831695483],
    ),
    Constrained(
        name="RC29 compressor",
        evaluate=compressor,
        low=[20, 1, 20, 0.1],
        high=[50, 10, 50, 60],
        best=2964895.4173,
        x=[50, 1.178283945, 24.59258929, 0.388353073],
    ),
)
