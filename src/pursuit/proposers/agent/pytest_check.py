"""`pursuit-pytest`: runs pytest, and succeeds only if every collected test has passed.

Its exit code is the number of tests that did not pass, so that a mission sees progress.

The exit code of pytest is not enough: code under test can end the process with 0. So pytest writes reports to a folder
outside of the tree, and this process reads them. In pytest this file is a plugin that imports none of our packages.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

COLLECTED = "PURSUIT_COLLECTED"
SKIPPED = "--skipped="
MOST, NO_REPORT = 100, 125
"""The largest number of tests in the exit code, and the exit code without a report."""


def pytest_collection_finish(session: Any) -> None:
    """Records the number of tests before the first one runs (pytest calls this)."""
    Path(os.environ[COLLECTED]).write_text(str(len(session.items)))


def main() -> int:
    """Runs `pursuit-pytest [--skipped=N] [COMMAND …]`; N tests may be skipped (default 0)."""
    words = sys.argv[1:]
    allowed = words.pop(0).removeprefix(SKIPPED) if words and words[0].startswith(SKIPPED) else "0"
    if not allowed.isdecimal() or shutil.which(words[0] if words else "pytest") is None:
        sys.exit(
            f"{SKIPPED}N needs a number" if not allowed.isdecimal() else f"{(words or ['pytest'])[0]} was not found"
        )
    most = int(allowed)
    with tempfile.TemporaryDirectory(prefix="pursuit-") as folder:
        report, collected = Path(folder, "report.xml"), Path(folder, "collected")
        shutil.copy(__file__, Path(folder, "pursuit_collected.py"))
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        command = [*(words or ["pytest", "-q"]), "-p", "pursuit_collected", f"--junitxml={report}"]
        environment = {**os.environ, "PYTHONPATH": path, COLLECTED: str(collected)}
        code = subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - of the operator
        if not (report.exists() and collected.exists()):
            sys.stderr.write(f"pytest ended with {code}, but without its report\n")
            return NO_REPORT
        cases = ElementTree.parse(report).iter("testcase")  # noqa: S314 - expat bounds what a file may expand to
        kinds = [{child.tag for child in case} for case in cases]
        wanted, skipped = int(collected.read_text()), sum("skipped" in one for one in kinds)
    passed = sum(not one & {"failure", "error", "skipped"} for one in kinds)
    sys.stderr.write(f"{passed} of {wanted} tests passed; {skipped} skipped, {most} allowed ({SKIPPED}N)\n")
    good = code == 0 and 0 < wanted == passed + skipped and skipped <= most
    return 0 if good else max(1, min(wanted - passed - min(skipped, most), MOST))


if __name__ == "__main__":
    sys.exit(main())
