"""Puts the JSON Schemas of `mission.toml` and `pursuit.toml`, as the models give them, into the wheel."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SchemaHook(BuildHookInterface):
    """An editable install has no schema files: `schema_text` makes them when it is asked."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self.folder = Path(tempfile.mkdtemp())
        if version == "editable":
            return
        sys.path.insert(0, str(Path(self.root, "src")))
        from pursuit.config.json_schemas import SCHEMAS, as_text

        for name, make in SCHEMAS.items():
            path = self.folder / f"{name}.schema.json"
            path.write_text(as_text(make()), encoding="utf-8")
            build_data["force_include"][str(path)] = f"pursuit/config/schemas/{path.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self.folder)
