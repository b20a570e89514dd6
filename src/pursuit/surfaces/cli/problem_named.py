"""Which problem the words of a command mean.

Owns: ids, files and folders as names of problems, and what is said of a name that means none. Opens no ledger.
Invariant: a path means the very file that it leads to; an id means one problem or is a fault, also where two have it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from pursuit.errors import Fault, ProblemNotFound, PursuitError, ValidationFailed
from pursuit.problems.catalogue import Catalogue, Found, discover, manifests_in
from pursuit.problems.manifest import MANIFEST, Manifest
from pursuit.problems.reading import read_manifest


def chosen(word: str, directories: Sequence[Path]) -> Manifest:
    """The problem that is meant: by its id, its file or its folder; an id goes before a folder of that name."""
    return _meant(word, directories, [])


def all_chosen(words: Iterable[str], directories: Sequence[Path]) -> list[Manifest]:
    """The problems that are meant, each once; the names that mean none are told all at once."""
    looked: list[Found] = []
    problems: dict[Path, Manifest] = {}
    wrong: list[PursuitError] = []
    for word in words:
        try:
            one = _meant(word, directories, looked)
        except (ProblemNotFound, ValidationFailed) as error:
            if error.message not in [other.message for other in wrong]:
                wrong.append(error)
        else:
            problems.setdefault(one.path.resolve(), one)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        faults = [fault for error in wrong for fault in _faults(error)]
        raise ValidationFailed(list(dict.fromkeys(faults)), f"{len(wrong)} of these mean no problem")
    return list(problems.values())


def _faults(error: PursuitError) -> Sequence[Fault]:
    return error.faults if isinstance(error, ValidationFailed) else [Fault(field="", reason=error.message)]


def _meant(word: str, directories: Sequence[Path], looked: list[Found]) -> Manifest:
    path = Path(word)
    if word.endswith(".toml"):
        return read_manifest(path)
    if word and (word != path.name or word == ".."):  # no id has a slash, nor is one `.`
        return read_manifest(_manifest_in(path))
    if not looked:
        looked.append(known(directories))
    (found,) = looked
    twice = [one for one in found.faults if one.field == "problem_id" and one.reason.startswith(repr(word))]
    if twice:
        raise ValidationFailed(twice, f"{word!r} is the id of more than one problem; name the file that you mean")
    try:
        return Catalogue(found.problems).get(word)
    except ProblemNotFound:
        if word and _is_folder(path) and os.path.lexists(path / MANIFEST):
            return read_manifest(path / MANIFEST)
        if found.faults:  # it may be one of those that cannot be read
            raise ValidationFailed(found.faults, f"there is no problem {word[:100]!r}, and some have faults") from None
        raise


def _manifest_in(path: Path) -> Path:
    """The manifest that a path leads to; of a folder its own, and none further down."""
    if not _is_folder(path):
        return path
    if os.path.lexists(path / MANIFEST):
        return path / MANIFEST
    below = [str(one.parent) for one in manifests_in(path)][:3]
    hint = f"; there are some below it, such as {', '.join(below)}" if below else ""
    reason = f"there is no {MANIFEST} in this folder{hint}"
    raise ValidationFailed([Fault(field="", reason=reason, source=str(path))], f"{path}: {reason}")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # such as a name that is too long for one
        return False


def known(directories: Sequence[Path]) -> Found:
    """What is shipped and what these folders have."""
    require_there(directories)
    return discover(directories)


def require_there(directories: Sequence[Path]) -> None:
    """Refuses a `--dir` that there is not."""
    reason = "there is no such file or directory"
    missing = [Fault(field=f"--dir {one}", reason=reason) for one in directories if not os.path.lexists(one)]
    if missing:
        raise ValidationFailed(missing, "; ".join(map(str, missing)))
