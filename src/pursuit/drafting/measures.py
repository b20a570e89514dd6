"""What the name of a measured thing tells of its values.

Owns: which way is better, which values are possible, and in what a thing is measured. A lexicon, so it knows only
what people usually mean. Pure. Invariant: a name that it does not know, or that says two things, tells nothing.
"""

from __future__ import annotations

import math
import re

_WORD = re.compile(r"[^\W_]+")


def wordset(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


_OF = {
    "time": wordset("latency latencies duration time times runtime ttfb delay lag downtime"),
    "money": wordset("cost costs price spend spending bill expense expenses fee revenue profit"),
    "mass": wordset("mass weight"),
    "length": wordset("length distance height width depth radius diameter thickness altitude deflection displacement"),
    "data": wordset("memory ram disk storage heap rss bundle footprint file image binary payload"),
    "temperature": wordset("temperature temp"),
}
_RELATIVE_ONLY = _OF["time"] | _OF["money"] | _OF["mass"] | _OF["length"] | _OF["temperature"]
_SMALLER = (
    _OF["time"]
    | _OF["mass"]
    | wordset("""
    cost costs price spend spending bill expense expenses fee error errors loss rmse mae mse mape perplexity wer cer fid
    memory ram heap rss footprint deflection failures failure bugs warnings crashes violations drag emissions overhead
    timeouts misses churn energy noise jitter debt vulnerabilities regressions leaks complexity p50 p75 p90 p95 p99 p999
    retries conflicts
    """)
)
_LARGER = wordset("""
    accuracy precision recall f1 auc auroc auprc map bleu rouge score throughput coverage uptime availability efficiency
    yield reward speed speedup fps rps qps tps bandwidth revenue profit users customers stars points r2 ssim psnr iou
    dice snr retention satisfaction nps quality strength stiffness lifetime
    """)
_SIGNED = wordset("""
    growth change increase decrease return returns improvement gain margin drift profit balance delta difference
    temperature temp reward correlation r2 net slope gradient offset skew bias npv roi logprob likelihood lag altitude
    elevation charge voltage current db dbm z score deviation displacement deflection x y position celsius fahrenheit
    torque force moment loss objective fitness elbo log
    """)
_NEVER_NEGATIVE = (
    _OF["time"] - {"lag"}
    | _OF["data"]
    | _OF["mass"]
    | wordset("""
    ms us ns s seconds minutes hours days kb mb gb tb kib mib gib bytes kg rps size count counts number cost costs price
    rate rates errors error failures failure warnings warning bugs violations crashes conflicts vulnerabilities leaks
    regressions timeouts coverage accuracy precision recall f1 auc rmse mae mse throughput tokens tests retries distance
    p50 p75 p90 p95 p99 total
    """)
)
_AT_MOST_HUNDRED = wordset("percent pct percentage accuracy precision recall f1 auc auroc coverage probability")


def words_of(name: str) -> list[str]:
    """The words of a metric's name."""
    return _WORD.findall(name.lower().replace("_", " "))


def known(name: str) -> bool:
    """Whether its last word is one that people measure by."""
    words = words_of(name)
    return bool(words) and words[-1] in _SMALLER | _LARGER | _RELATIVE_ONLY | _OF["data"] | {
        "rate",
        "size",
        "usage",
        "ratio",
        "norm",
    }


def smaller_is_better(name: str) -> bool | None:
    """Which way is better, or None if the name does not tell."""
    words = frozenset(words_of(name))
    down, up = bool(words & _SMALLER), bool(words & _LARGER)
    return down if down != up else None


def measured_in(name: str) -> str | None:
    """What it is measured in (time, money, mass, length, data, temperature), or None if the name does not tell."""
    words = frozenset(words_of(name))
    kinds = [kind for kind, names in _OF.items() if words & names]
    return kinds[0] if len(kinds) == 1 else None


def never_a_share(name: str) -> bool:
    """Whether so many percent of it can only be meant against an earlier value of it."""
    words = words_of(name)
    return bool(words) and words[-1] in _RELATIVE_ONLY


def possible(name: str) -> tuple[float, float]:
    """The least and the most that it can be, as far as its name tells."""
    words = frozenset(words_of(name))
    if words & _SIGNED and not words & {"count", "counts", "number", "rate"}:
        return -math.inf, math.inf
    if words & _AT_MOST_HUNDRED:
        return 0, 100
    return (0 if words & _NEVER_NEGATIVE else -math.inf), math.inf


def can_be_negative(name: str) -> bool:
    """Whether its name says so; of most things that are measured there is no less than nothing."""
    return bool(frozenset(words_of(name)) & _SIGNED) and possible(name)[0] < 0
