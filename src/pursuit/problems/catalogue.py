"""Finds, lists and searches problems.

Invariant: problems are ordered by id; a duplicate id is a fault that names both files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pursuit.config.trust import TrustedFolder, started, started_server
from pursuit.core.base_model import nearest
from pursuit.errors import Fault, ProblemNotFound, ValidationFailed, advice
from pursuit.problems.files import not_a_file
from pursuit.problems.manifest import KINDS, MANIFEST, Manifest
from pursuit.problems.manifest_reading import read_manifest

SHIPPED = Path(__file__).parent / "shipped"
_SKIPPED = frozenset({".git", ".venv", "node_modules", "__pycache__", ".pursuit"})


def workspaces_of(problem: Manifest) -> tuple[TrustedFolder, ...]:
    """The programs that a problem starts (its server and its judge), for trust; a shipped problem is trusted."""
    if problem.path.resolve().is_relative_to(SHIPPED.resolve()):
        return ()
    rows = [] if problem.server is None else [started_server("of the problem", problem.server)]
    judge = (problem.scorer.function,) if problem.scorer.function is not None else problem.scorer.command
    if judge:
        rows.append(started("judge", problem.problem_id, judge, isolation=problem.scorer.isolation))
    return (TrustedFolder(path=problem.path, starts=dict(rows)),)


def manifests_in(directory: Path, unread: list[Fault] | None = None) -> list[Path]:
    """Every manifest below a directory (or the file itself), sorted; includes directories with a manifest's name.

    Folders that cannot be read are added to `unread`.
    """
    if directory.name == MANIFEST or not directory.is_dir():
        return [directory]

    def note(error: OSError) -> None:
        if unread is not None:
            unread.append(Fault(field="", reason=f"cannot be read: {error.strerror}", source=str(error.filename)))

    found: list[Path] = []
    for folder, names, files in os.walk(directory, onerror=note):
        if MANIFEST in files or MANIFEST in names:
            found.append(Path(folder) / MANIFEST)
        names[:] = sorted(name for name in names if name not in _SKIPPED and name != MANIFEST)
    return sorted(found)


def discover(directories: Sequence[Path], *, shipped: bool = True) -> ProblemCatalogue:
    """The problems below these directories, and the shipped ones; reports faulty manifests and omits them."""
    faults: list[Fault] = []
    found: dict[str, Manifest] = {}
    for path in _once([*([SHIPPED] if shipped else []), *directories], faults):
        try:
            manifest = read_manifest(path)
        except ValidationFailed as failed:
            faults.extend(failed.faults)
            continue
        known = found.get(manifest.problem_id)
        if known is not None:
            reason = f"{manifest.problem_id!r} is the id of two problems: {known.path} and {manifest.path}"
            faults.append(Fault(field="problem_id", reason=reason, source=str(manifest.path)))
            continue
        found[manifest.problem_id] = manifest
    return ProblemCatalogue(found.values(), faults)


def _once(directories: Iterable[Path], unread: list[Fault]) -> list[Path]:
    """The manifests of all directories without repetitions, even if one directory is inside another."""
    seen: dict[Path, None] = {}
    for directory in directories:
        if not os.path.lexists(directory):
            reason = "the file or directory does not exist"
            raise ValidationFailed([Fault(field="", reason=reason, source=str(directory))], f"{directory}: {reason}")
        for path in manifests_in(directory, unread):
            seen.setdefault(path.absolute() if not_a_file(path) else path.resolve())
    return list(seen)


class ProblemCatalogue:
    """Problems by id; `faults` are those of the manifests that were left out."""

    def __init__(self, problems: Iterable[Manifest], faults: Sequence[Fault] = ()) -> None:
        self._problems = {one.problem_id: one for one in sorted(problems, key=lambda one: one.problem_id)}
        self.faults = faults

    @staticmethod
    def load(*directories: Path | str, shipped: bool = True) -> ProblemCatalogue:
        found = discover([Path(one) for one in directories], shipped=shipped)
        if found.faults:
            raise ValidationFailed(found.faults, f"{len(found.faults)} faults in the problems")
        return found

    def __len__(self) -> int:
        return len(self._problems)

    def __iter__(self) -> Iterator[Manifest]:
        return iter(self._problems.values())

    def get(self, problem_id: str) -> Manifest:
        found = self._problems.get(problem_id)
        if found is None:
            hint = nearest(problem_id, self._problems) or f"; see `{advice('pursuit problem list')}`"
            raise ProblemNotFound(f"problem {problem_id[:100]!r} does not exist{hint}", problem_id=problem_id[:100])
        return found

    def search(
        self, text: str | None = None, *, kind: str | None = None, tags: Sequence[str] | str = ()
    ) -> list[Manifest]:
        """The problems that match every filter: all words of the text, the kind, and all tags.

        Raises `ValidationFailed` for an unknown kind.
        """
        if kind is not None and kind not in KINDS:
            reason = f"unknown kind {kind[:60]!r}; known: {', '.join(KINDS)}{nearest(kind, KINDS)}"
            raise ValidationFailed([Fault(field="kind", reason=reason)], f"kind: {reason}")
        words, tags = (text or "").lower().split(), [tags] if isinstance(tags, str) else tags
        return [
            one
            for one in self
            if (kind is None or one.kind == kind)
            and all(tag in one.tags for tag in tags)
            and all(
                word in f"{one.problem_id} {one.title} {one.summary} {' '.join(one.tags)}".lower() for word in words
            )
        ]
