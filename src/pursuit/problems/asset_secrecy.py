"""What the files that agents may read tell of the scorer.

Owns: how a file of any size and encoding, also a packed one, is looked through. Does not know: what scoring data is.
Invariant: a fault names the asset and what it tells; of a file that is no text its bytes are read as characters.
"""

from __future__ import annotations

from pathlib import Path

from pursuit.problems.files import file_of, pieces_of
from pursuit.problems.judge_files import hidden_files, read_files
from pursuit.problems.manifest import Manifest
from pursuit.problems.secrecy import answered, answers_of, in_words, numbers_of, told_in
from pursuit.problems.unpacking import pieces_in
from pursuit.tools.fields import Fields

_LONG_LINE = 24


def check_assets(root: Fields, manifest: Manifest) -> None:
    """No asset is, or holds, a file with scoring data, or tells a number of the scorer or the baseline's answer."""
    if not manifest.assets:
        return
    hidden = hidden_files(manifest.path, manifest.scorer, manifest.baseline)
    # Of the manifest itself agents read a good part, so that a line of it tells nothing.
    lines = [(what, _long_lines(path)) for path, what in hidden.items() if path != manifest.path]
    shown = {file_of(manifest.folder, name) for name in manifest.assets}
    read = read_files(manifest.path, manifest.scorer) - hidden.keys() - shown
    lines += [(f"{path.name!r}, which the judge reads", _long_lines(path)) for path in sorted(read)]
    for place, name in enumerate(manifest.assets):
        at = f"assets[{place}]"
        for secret in told_in(in_words(name), numbers_of(manifest.scorer)):
            root.fault(at, f"the name {name!r} tells agents the number of {secret.field}")
        path = file_of(manifest.folder, name)
        if isinstance(path, str):
            continue
        what = next((what for file, what in hidden.items() if _is_one(path, file)), None)
        if what is not None:
            root.fault(at, f"{name!r} is {what}: scoring data, which no agent may see")
            continue
        for told in _told(path, manifest, lines):
            root.fault(at, f"{name!r} {told}")


def _told(path: Path, manifest: Manifest, lines: list[tuple[str, list[str]]]) -> list[str]:
    """What a file tells, each once."""
    secrets, answers = numbers_of(manifest.scorer), answers_of(manifest)
    held = [set[str]() for _ in lines]
    told: dict[str, None] = {}
    for piece in pieces_in(path):
        for (_, some), seen in zip(lines, held, strict=True):
            seen.update(line for line in some if line in piece)
        told |= {f"tells agents the number of {one.field}": None for one in told_in(piece, secrets, data=True)}
        if any(answered(piece, answer) for answer in answers):
            told["holds the answer of the baseline"] = None
    whose = (what for (what, some), seen in zip(lines, held, strict=True) if some and len(seen) >= min(3, len(some)))
    first = [f"holds lines of {what}: scoring data, which no agent may see" for what in whose][:1]
    return [*first, *told]


def _is_one(path: Path, hidden: Path) -> bool:
    try:
        return path == hidden or path.samefile(hidden)
    except OSError:
        return False


def _long_lines(path: Path) -> list[str]:
    lines = {line.strip() for line in next(pieces_of(path), "").splitlines()}
    return [line for line in lines if len(line) >= _LONG_LINE and not line.startswith(("import ", "from "))]
