"""Numbers as people write them, with their units: "1,500 ms", "0,5 %", "$1.2M", "3e-4", "10k rps".

Owns: how a number is read, which units are known and how they are converted. Pure. Invariant: what can be read in two
ways is an `Unclear` with both of them, never a number.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from pursuit.drafting.measures import wordset

_EXACT: dict[str, tuple[str, str, float]] = {
    # As written: the name in a metric, what it measures, and how many of the first unit of that kind it is.
    "W": ("w", "power", 1), "kW": ("kw", "power", 1e3), "MW": ("megawatt", "power", 1e6), "mW": ("mw", "power", 1e-3),
    "J": ("j", "energy", 1), "kJ": ("kj", "energy", 1e3), "MJ": ("megajoule", "energy", 1e6),
    "Wh": ("wh", "energy", 3.6e3), "kWh": ("kwh", "energy", 3.6e6),
    "V": ("v", "voltage", 1), "mV": ("mv", "voltage", 1e-3), "kV": ("kv", "voltage", 1e3),
    "A": ("a", "current", 1), "mA": ("ma", "current", 1e-3),
    "Pa": ("pa", "pressure", 1), "kPa": ("kpa", "pressure", 1e3), "MPa": ("mpa", "pressure", 1e6),
    "GPa": ("gpa", "pressure", 1e9), "N": ("n", "force", 1), "kN": ("kn", "force", 1e3),
}  # fmt: skip
_FOLDED: dict[tuple[str, str, float], str] = {
    ("percent", "share", 1): "% percent percentage",
    ("s", "time", 1): "s sec secs second seconds", ("ms", "time", 1e-3): "ms msec msecs millisecond milliseconds",
    ("us", "time", 1e-6): "µs μs us microsecond microseconds", ("ns", "time", 1e-9): "ns nanosecond nanoseconds",
    ("minutes", "time", 60): "min mins minute minutes", ("hours", "time", 3600): "h hr hrs hour hours",
    ("days", "time", 86400): "d day days", ("weeks", "time", 604800): "week weeks",
    ("bytes", "data", 1): "byte bytes", ("kb", "data", 1e3): "kb kilobyte kilobytes",
    ("mb", "data", 1e6): "mb megabyte megabytes", ("gb", "data", 1e9): "gb gigabyte gigabytes",
    ("tb", "data", 1e12): "tb terabyte terabytes", ("kib", "data", 2.0**10): "kib", ("mib", "data", 2.0**20): "mib",
    ("gib", "data", 2.0**30): "gib", ("tib", "data", 2.0**40): "tib",
    ("usd", "money", 1): "usd dollar dollars $", ("eur", "euros", 1): "eur euro euros €",
    ("gbp", "pounds", 1): "gbp £", ("cents", "cents", 1): "cent cents ¢",
    ("kg", "mass", 1): "kg kgs kilogram kilograms kilo kilos", ("g", "mass", 1e-3): "g gram grams",
    ("mg", "mass", 1e-6): "mg milligram milligrams", ("tonnes", "mass", 1e3): "tonne tonnes",
    ("lb", "mass", 0.45359237): "lb lbs", ("m", "length", 1): "meter meters metre metres",
    ("km", "length", 1e3): "km kilometer kilometers kilometre kilometres", ("cm", "length", 1e-2): "cm",
    ("mm", "length", 1e-3): "mm millimeter millimeters millimetre millimetres", ("um", "length", 1e-6): "µm μm um",
    ("nm", "length", 1e-9): "nm", ("inches", "length", 0.0254): "inch inches", ("ft", "length", 0.3048): "ft feet",
    ("miles", "length", 1609.344): "mile miles",
    ("hz", "frequency", 1): "hz", ("khz", "frequency", 1e3): "khz", ("mhz", "frequency", 1e6): "mhz",
    ("ghz", "frequency", 1e9): "ghz", ("rps", "rate", 1): "rps qps", ("fps", "frames", 1): "fps",
    ("tps", "transactions", 1): "tps", ("rpm", "turns", 1): "rpm", ("mph", "speed", 1): "mph",
    ("mbps", "bits", 1e6): "mbps mbit/s", ("gbps", "bits", 1e9): "gbps gbit/s", ("kbps", "bits", 1e3): "kbps kbit/s",
    ("db", "level", 1): "db", ("dbm", "dbm", 1): "dbm", ("bar", "bar", 1): "bar", ("psi", "psi", 1): "psi",
    ("celsius", "celsius", 1): "°c celsius", ("fahrenheit", "fahrenheit", 1): "°f fahrenheit",
    ("degrees", "degrees", 1): "° degree degrees", ("times", "factor", 1): "x \u00d7 times fold",
}  # fmt: skip
_KNOWN = {word: unit for unit, words in _FOLDED.items() for word in words.split()}
RATES = frozenset({"rate", "frames", "transactions", "turns", "speed", "bits", "frequency"})
_TIME_WORDS = wordset(
    "latency latencies duration time times runtime delay lag timeout within finish finishes complete completes takes "
    "take lasts faster slower wait uptime downtime response respond responds minutes hours in"
)
_LENGTH_WORDS = wordset(
    "length distance height width depth radius diameter thickness altitude range deflection displacement tall wide "
    "deep long position ceiling span"
)
_DATA_WORDS = wordset(
    "memory ram disk storage heap rss bundle footprint file image binary payload size cache log logs swap"
)
_HEAT_WORDS = frozenset({"temperature", "temp", "kelvin", "heat", "hot", "cold", "warm"})
_MASS_WORDS = frozenset({"mass", "weight", "weighs", "weigh", "load", "heavy"})
_SCALES = {"k": 1e3, "thousand": 1e3, "million": 1e6, "mn": 1e6, "billion": 1e9, "bn": 1e9, "trillion": 1e12}
_SMALL = {word: float(n) for n, word in enumerate(
    ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
)} | {"twenty": 20.0, "fifty": 50.0, "hundred": 100.0}  # fmt: skip
_RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹\u2212", "-0123456789-")
_NUMBER = re.compile(
    r"(?P<money>(?:[$€£]|\b(?:usd|eur|gbp)\b)\s?)?"
    r"(?:(?P<sign>[-\u2212+])?(?P<digits>\d{1,3}(?:[ '_\u00a0\u202f]\d{3})+(?!\d)(?:[.,]\d+)?|\d(?:[\d.,]*\d)?|\.\d+)"
    r"(?:e(?P<e>[-+\u2212]?\d+)|\s?[x\u00d7*·]\s?10(?:\^|\*\*)?(?P<ten>[-\u2212]?\d+|[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)"
    r"|(?:\^|\*\*)(?P<power>[-\u2212]?\d+)|(?P<raised>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?"
    rf"|(?P<word>{'|'.join(_SMALL)})\b)",
    re.I,
)
_UNIT = re.compile(r"(?P<gap>[ \u00a0\u202f-]?)(?P<unit>[%$€£¢\u00d7]|per cent\b|°[CF]?|[A-Za-zµμ][A-Za-zµμ²³]*)")
_PER = re.compile(
    r"\s?(?:/|\bper\b)\s?(?P<thing>[a-z]+)\b|\s(?:a|an|each)\s(?P<time>second|minute|hour|day|week|month|year)\b", re.I
)
_ODD = re.compile(
    r"(?:[:/\u2013-]\d|[\d]|,\d|\.\d|[^\W\d_])[\w.,:/-]*|\s+in\s+(?:a\s+|one\s+)?(?:\d+|hundred|thousand|million)"
)
_COMMA = re.compile(r"(?<![\d.,])(?:0,\d+|\d+,(?:\d{1,2}|\d{4,}))(?![\d,])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What a number counts; `factor` turns it into the first unit of its kind."""

    name: str = ""
    kind: str = ""
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A number with its unit, and where it stands."""

    number: float
    unit: Unit
    start: int
    end: int
    of: float | None = None

    def within(self, unit: Unit) -> float | None:
        """The number in another unit, or None if that measures something else."""
        if not self.unit.name or self.unit == unit:
            return self.number
        return tidy(self.number * self.unit.factor / unit.factor) if self.unit.kind == unit.kind else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclear:
    """Why a number cannot be used."""

    reason: str
    start: int
    end: int


def tidy(number: float) -> float:
    """Without what binary fractions leave behind."""
    return float(f"{number:.12g}")


def decimal_commas(text: str) -> bool:
    """Whether somebody writes 0,5 for a half."""
    return _COMMA.search(text) is not None


def read_quantity(text: str, at: int, context: AbstractSet[str], *, commas: bool = False) -> Quantity | Unclear | None:
    """The quantity that begins at a place; `context` are the words around it, in lower case."""
    found = _NUMBER.match(text, at)
    if found is None:
        return None
    number = _SMALL[found["word"].lower()] if found["word"] else _valued(found, commas)
    if isinstance(number, str):
        return Unclear(reason=number, start=at, end=found.end())
    money = (found["money"] or "").strip().lower()
    read = _united(text, found.end(), context, counted=bool(money))
    if isinstance(read, str):
        glued = re.compile(r"\s?\w*").match(text, found.end())
        end = found.end() if glued is None else glued.end()
        return Unclear(reason=read.format(text[at : found.end()].strip()), start=at, end=end)
    scale, unit, end = read
    if money:
        unit = _unit_of(money) if not unit.name else Unit(name=f"{_unit_of(money).name}{unit.name}", kind=unit.kind)
    if (odd := _ODD.match(text, end)) is not None:
        said = text[at : odd.end()].strip(" .,")
        return Unclear(reason=f"{said!r} is not a plain number", start=at, end=odd.end())
    out_of = re.compile(r"\s+(?:out\s+)?of\s+(?:the\s+|our\s+)?(?P<all>\d+)\b(?!\s?%)").match(text, end)
    if out_of is not None and not unit.name:
        return Quantity(number=number * scale, unit=unit, start=at, end=out_of.end(), of=float(out_of["all"]))
    return Quantity(number=tidy(number * scale), unit=unit, start=at, end=end)


def _unit_of(word: str) -> Unit:
    name, kind, factor = _KNOWN[word]
    return Unit(name=name, kind=kind, factor=factor)


def _valued(found: re.Match[str], commas: bool) -> float | str:
    """The number that the digits say, or why they say none."""
    number = _plain(re.sub(r"[ '_\u00a0\u202f]", "", found["digits"]), commas)
    if isinstance(number, str):
        return number
    exponent = found["e"] or found["ten"]
    try:
        if exponent:
            number *= 10.0 ** int(exponent.translate(_RAISED))
        elif found["power"] or found["raised"]:
            number **= int((found["power"] or found["raised"]).translate(_RAISED))
    except (OverflowError, ValueError, ZeroDivisionError):
        return f"{found[0].strip()!r} is out of range"
    if abs(number) > 1e300:
        return f"{found[0].strip()!r} is out of range"
    return -tidy(number) if found["sign"] in ("-", "\u2212") else tidy(number)


def _plain(digits: str, commas: bool) -> float | str:
    """Digits with points and commas: the last of two kinds is the decimal one."""
    dots, comma = digits.count("."), digits.count(",")
    if comma and dots:
        decimal = max("., ".strip(), key=digits.rfind)
        whole, _, rest = digits.rpartition(decimal)
        other = "," if decimal == "." else "."
        if decimal in whole or not _grouped(whole, other):
            return f"{digits!r} is not a plain number"
        return float(whole.replace(other, "") + "." + rest)
    mark = "," if comma else "."
    if comma + dots > 1:
        return float(digits.replace(mark, "")) if _grouped(digits, mark) else f"{digits!r} is not a plain number"
    if mark == "," and comma:
        if _grouped(digits, ","):
            whole = digits.replace(",", "")
            return float(whole) if not commas else f"{digits!r} can mean {whole} or {digits.replace(',', '.')}"
        return float(digits.replace(",", "."))
    if dots and commas and _grouped(digits, "."):
        return f"{digits!r} can mean {digits.replace('.', '')} or {digits.replace('.', ',')}"
    return float(digits)


def _grouped(digits: str, mark: str) -> bool:
    """Whether it is written in thousands."""
    first, *rest = digits.split(mark)
    return bool(first) and not first.startswith("0") and len(first) <= 3 and all(len(group) == 3 for group in rest)


def _united(
    text: str, at: int, context: AbstractSet[str], *, counted: bool, scale: float = 1.0
) -> tuple[float, Unit, int] | str:
    """The scale and the unit after a number, and where they end; or why they are not clear ({} is the number)."""
    per = _PER.match(text, at)
    if counted and per is not None:
        return scale, Unit(name=f"_per_{(per['thing'] or per['time']).lower()}", kind="rate"), per.end()
    found = _UNIT.match(text, at)
    if found is None or (counted and found["unit"].lower() == "per"):
        return scale, Unit(), at
    word, glued = found["unit"], not found["gap"]
    if word.lower() == "per cent":
        word = "%"
    if scale == 1.0 and word.lower() in _SCALES and not (word == "K" and context & (_HEAT_WORDS | _DATA_WORDS)):
        return _united(text, found.end(), context, counted=counted, scale=_SCALES[word.lower()])
    if word in ("K", "M", "m", "B", "b", "G", "T", "t", "C", "F", "Mb", "Gb") and scale == 1.0:
        return _letter(text, found, context, counted)
    if word in _EXACT or word.lower() in _KNOWN:
        name, kind, factor = _EXACT.get(word) or _KNOWN[word.lower()]
        end = found.end()
        per = _PER.match(text, end)
        if per is not None and kind not in ("share", "factor"):
            return scale, Unit(name=f"{name}_per_{(per['thing'] or per['time']).lower()}", kind="rate"), per.end()
        return scale, Unit(name=name, kind=kind, factor=factor), end
    if re.compile(r"requests?\s?(?:/|per\s|a\s)\s?s(?:ec(?:ond)?)?\b|req/s\b", re.I).match(text, found.start("unit")):
        end = re.compile(r"\s?-?req\w*\s?(?:/|per\s|a\s)\s?\w+", re.I).match(text, at)
        return scale, _unit_of("rps"), end.end() if end is not None else found.end()
    if glued and scale == 1.0:
        return f"the unit of {{}}{word} is not known here"
    return scale, Unit(), at


def _letter(text: str, found: re.Match[str], context: AbstractSet[str], counted: bool) -> tuple[float, Unit, int] | str:
    """A letter that means several things; the words around it must leave one of them."""
    word, end = found["unit"], found.end()
    things = re.compile(r"\s+(?P<thing>[a-z]{2,}s)\b", re.I).match(text, end)
    plural = things is not None and things["thing"].lower() not in _KNOWN
    meanings: dict[str, tuple[float, Unit, int] | str] = {}
    speed = _PER.match(text, end) if word == "m" else None
    if speed is not None and (speed["thing"] or "").lower() in ("s", "sec", "second", "h", "hour", "min", "minute"):
        return 1.0, Unit(name=f"m_per_{(speed['thing'] or '').lower()}", kind="rate"), speed.end()
    if word in "Mm" and (counted or plural):
        meanings["million"] = _united(text, end, context, counted=counted, scale=1e6)
    if word == "m" and context & _TIME_WORDS and not counted:
        meanings["minutes"] = (1.0, _unit_of("minutes"), end)
    if word == "m" and context & _LENGTH_WORDS and not counted:
        meanings["metres"] = (1.0, _unit_of("metres"), end)
    if word in "Bb" and (counted or plural):
        meanings["billion"] = _united(text, end, context, counted=counted, scale=1e9)
    if word in ("K", "M", "G", "T", "B", "Mb", "Gb") and context & _DATA_WORDS and not counted:
        meanings["bytes"] = (1.0, _unit_of({"B": "bytes"}.get(word, f"{word[0].lower()}b")), end)
    if word == "K" and context & _HEAT_WORDS:
        meanings["kelvin"] = (1.0, Unit(name="kelvin", kind="kelvin"), end)
    if word in "CF" and context & _HEAT_WORDS:
        meanings["degrees"] = (1.0, _unit_of({"C": "celsius", "F": "fahrenheit"}[word]), end)
    if word == "t" and context & _MASS_WORDS:
        meanings["tonnes"] = (1.0, _unit_of("tonnes"), end)
    if len(meanings) == 1:
        return next(iter(meanings.values()))
    could = {
        "m": "minutes, metres or million", "M": "million, megabytes or minutes", "B": "billion or bytes",
        "b": "billion, bits or bytes", "G": "billion or gigabytes", "T": "trillion, terabytes or tesla",
        "t": "tonnes or trillion", "K": "thousand, kelvin or kilobytes", "C": "degrees or coulombs",
        "F": "degrees or farads", "Mb": "megabits or megabytes", "Gb": "gigabits or gigabytes",
    }[word]  # fmt: skip
    return f"{{}}{found['gap']}{word} can mean {could}; write the word"
