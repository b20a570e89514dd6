"""Runs the suite directly and through the gateway, and writes what it says to `gateway_results.toml`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gateway_runs import RESULTS, THROUGH, VERSIONS, run_http, run_stdio

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        runs = run_stdio(Path(folder)) | run_http(Path(folder))
    RESULTS.write_text(runs.written(), encoding="utf-8")
    for version in VERSIONS:
        for how in THROUGH:
            for scenario, checks in runs.lost(how, version).items():
                for name, said in checks.items():
                    print(f"{version} {how} {scenario} {name}: {said}")
