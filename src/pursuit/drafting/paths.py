"""Files that a directive asks for: "report.md exists", "write out/data.csv".

Owns: what looks like a path, and which words ask for a file. Pure; looks at no disk.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pursuit.drafting.measures import wordset

_KNOWN = wordset("""
    md txt csv tsv json jsonl toml yaml yml xml html htm pdf png jpg jpeg svg gif webp py js ts tsx rs go java c
    cpp h hpp sh sql db sqlite parquet arrow npz npy pkl pt pth onnx safetensors h5 hdf5 nc log zip gz tar whl
    ipynb tex bib docx xlsx pptx stl step stp obj vtk inp dat bin wav mp3 mp4 lock cfg ini env rst css lean out
""")
_PATH = (
    r"(?P<quote{0}>[`\"'])?(?<![:\w/.~-])(?P<path{0}>(?:~/|\.{{0,2}}/)?(?:[\w.-]+/)*[\w-][\w.-]*\.[a-z]\w{{0,11}}"
    r"|(?:~/|\.{{0,2}}/)?(?:[\w.-]+/)+[\w.-]+|(?:~/|\.{{0,2}}/)[\w.-]+)(?(quote{0})[`\"'])"
)
_FILE = re.compile(
    _PATH.format(1)
    + r"\s+(?:(?:must|should|to|will)\s+)?"
    + r"(?:exists?\b|(?:is|be)\s+(?:there|written|created|present|produced|generated)\b)"
    + r"|\b(?:create|write|produce|generate|save)\b"
    + r"(?:\s+(?:a|an|the|it|them|file|files|report|results?|plot|output|"
    + r"summary|table|figure|chart|list|notes|data|dataset|model|called|named|to|as|in|into))*\s+"
    + _PATH.format(2),
    re.I,
)
_NOT = re.compile(r"\b(?:not|never|no|without|avoid|\w+n['\u2019]t)\s+(?:\w+\s+)?$", re.I)
_NAMES = wordset("node.js next.js vue.js nuxt.js d3.js three.js express.js react.js asp.net e.g i.e vs.the")


def files(directive: str) -> Iterator[tuple[str, str, int, str]]:
    """Each path, the words that ask for it, where they stand, and why it is not asked for (empty if it is)."""
    for found in _FILE.finditer(directive):
        path = (found["path1"] or found["path2"]).rstrip(".")
        if path.lower() in _NAMES or not _a_path(path, quoted=bool(found["quote1"] or found["quote2"])):
            continue
        why = ""
        if _NOT.search(directive[: found.start()][-40:]):
            why = "it says that the file should not be; a check for that is for you to write"
        elif directive[: found.start("path1" if found["path1"] else "path2")].endswith("//"):
            why = "an address is not a file"
        yield path, found[0], found.start(), why


def _a_path(path: str, *, quoted: bool) -> bool:
    """Whether it is one beyond doubt: input/output is not, ./output is."""
    known = path.rpartition(".")[2].lower() in _KNOWN
    return (
        quoted or known or path.startswith(("./", "../", "/", "~/")) or ("/" in path and "." in path.rpartition("/")[2])
    )
