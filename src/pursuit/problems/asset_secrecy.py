"""What the files that agents may read tell of the scorer.

Owns: how a file of any size and encoding, also a packed one, is looked through, and which an author vouches for
(`visibility.public`). Does not know: what scoring data is. Invariant: a fault names the asset, quotes what it tells,
and says what to do; the time grows with the size of the file alone, about two seconds for 30 MB.
"""

from __future__ import annotations

from pathlib import Path

from pursuit.problems.answers import Answer, answers_of, held_by, told_answer
from pursuit.problems.copies import Original, original_of, piece_of
from pursuit.problems.files import file_of
from pursuit.problems.judge_files import hidden_files, judging_files, read_files
from pursuit.problems.manifest import Manifest
from pursuit.problems.secrecy import ARGUMENTS, Secret, has_argument, in_words, secrets_of, tellings, told_among
from pursuit.problems.unpacking import pieces_in
from pursuit.tools.fields import Fields

_VOUCH = "name it in visibility.public if judge and agents share it"


def check_assets(root: Fields, manifest: Manifest) -> None:
    """No asset is, or holds, a file with scoring data, or tells a number of the scorer or an answer."""
    public = _public(root, manifest)
    if not manifest.assets:
        return
    hidden = hidden_files(manifest.path, manifest.scorer, manifest.baseline, manifest.server)
    originals: list[Original] | None = None
    secrets, answers = secrets_of(manifest), answers_of(manifest)
    for place, name in enumerate(manifest.assets):
        at = f"assets[{place}]"
        for told in tellings(in_words(name), secrets, data=True):
            root.fault(at, f"the name {name!r} {told}")
        path = file_of(manifest.folder, name)
        if isinstance(path, str) or path in public:
            continue
        what = next((what for file, what in hidden.items() if _is_one(path, file)), None)
        if what is not None:
            way_out = f"; {_VOUCH}" if path not in judging_files(manifest) else ""
            root.fault(at, f"{name!r} is {what}: scoring data, which no agent may see{way_out}")
            continue
        originals = originals if originals is not None else _originals(manifest, hidden, public)
        for reason in _told(path, [one.anew() for one in originals], secrets, answers):
            root.fault(at, f"{name!r} {reason}")


def _public(root: Fields, manifest: Manifest) -> set[Path]:
    """The files that the author vouches for; a fault for one that cannot be shared, or that no agent is given."""
    own = judging_files(manifest)
    given = {file_of(manifest.folder, name) for name in manifest.assets}
    found: set[Path] = set()
    for place, name in enumerate(manifest.visibility.public):
        at, path = f"visibility.public[{place}]", file_of(manifest.folder, name)
        if name.startswith(f"{ARGUMENTS}."):
            if not has_argument(manifest.scorer, name):
                root.fault(at, f"{name[:80]!r} is no argument of the judge")
        elif isinstance(path, str):
            root.fault(at, path)
        elif (what := next((what for file, what in own.items() if _is_one(path, file)), None)) is not None:
            root.fault(at, f"{name!r} is {what} itself: scoring data, which no agent may see")
        elif path not in given:
            root.fault(at, f"{name!r} is none of the assets, so that no agent is given it")
        else:
            found.add(path)
    return found


def _originals(manifest: Manifest, hidden: dict[Path, str], public: set[Path]) -> list[Original]:
    """The files of which an asset may hold nothing; of the manifest itself agents read a good part."""
    shown = {file_of(manifest.folder, name) for name in manifest.assets}
    read = read_files(manifest.path, manifest.scorer, manifest.server) - hidden.keys() - shown
    files = [(path, what) for path, what in hidden.items() if path != manifest.path and path not in public]
    files += [(path, f"{path.name!r}, which the judge reads") for path in sorted(read)]
    return [original_of(path, what) for path, what in files]


def _told(path: Path, originals: list[Original], secrets: list[Secret], answers: list[Answer]) -> list[str]:
    """What a file tells, each once."""
    numbers: dict[str, str] = {}
    texts: dict[Answer, str] = {}
    for text in pieces_in(path):
        piece = piece_of(text)
        for original in originals:
            original.look(piece)
        left = [secret for secret in secrets if secret.field not in numbers]
        numbers |= {told.secret.field: str(told) for told in told_among(text, piece.bare, left)}
        for answer in answers:
            if answer not in texts and (words := held_by(text, piece.bare, answer)) is not None:
                texts[answer] = told_answer(answer, words, asset=True)
    copied = [
        f"{words}: scoring data, which no agent may see; {_VOUCH}" for one in originals if (words := one.copied())
    ]
    return [*copied, *numbers.values(), *texts.values()]


def _is_one(path: Path, hidden: Path) -> bool:
    try:
        return path == hidden or path.samefile(hidden)
    except OSError:
        return False
