"""Reads the entries of `tools/list` as `Tool` values.

One odd entry costs that entry, with a reason, and never the listing. `definition` is upstream's JSON, unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, cast

from pursuit.config.servers import ServerConfig
from pursuit.core.pins import digest_of
from pursuit.core.tools import Tool
from pursuit.policy.traits import traits
from pursuit.upstream.known_servers import KnownServer, recognised
from pursuit.upstream.tasks import Generation, task_support


def is_offered(config: ServerConfig, tool: str) -> bool:
    """Whether the operator enables this tool: on the list of enabled ones, if any, and not disabled."""
    enabled, disabled = config.enabled_tools, config.disabled_tools
    if enabled is not None and not any(fnmatchcase(tool, pattern) for pattern in enabled):
        return False
    return not any(fnmatchcase(tool, pattern) for pattern in disabled)


def read_listing(
    config: ServerConfig, entries: Iterable[object], *, tasks: Generation | None = None
) -> tuple[list[Tool], list[str]]:
    """The usable tools, each name once, and a warning for each entry that is left out.

    `tasks` is the generation of tasks that the server declares, if any.
    """
    found: dict[str, Tool] = {}
    warnings: list[str] = []
    known = recognised(config)
    for index, entry in enumerate(entries):
        result = _read_entry(config, index, entry, known, tasks)
        if isinstance(result, str):
            warnings.append(result)
        elif result.name in found:
            warnings.append(f"{result.qualified}: listed twice; the first one counts")
        elif is_offered(config, result.name):
            found[result.name] = result
    return list(found.values()), warnings


def _read_entry(
    config: ServerConfig, index: int, entry: object, known: KnownServer | None, tasks: Generation | None
) -> Tool | str:
    if not isinstance(entry, Mapping):
        return f"{config.name}: tool {index + 1} is left out: it is not an object"
    definition = cast("Mapping[str, Any]", entry)
    name, schema = definition.get("name"), definition.get("inputSchema")
    if not isinstance(name, str) or not name.strip():
        return f"{config.name}: tool {index + 1} is left out: it has no usable name"
    if not isinstance(schema, Mapping):
        return f"{config.name}.{name} is left out: it has no usable input schema"
    schema = cast("Mapping[str, Any]", schema)
    if schema.get("type", "object") != "object":
        return f"{config.name}.{name} is left out: its input schema is for {schema['type']!r}, not for an object"
    description = definition.get("description")
    annotations = definition.get("annotations")
    return Tool(
        server=config.name,
        name=name,
        description=description if isinstance(description, str) else "",
        input_schema=schema,
        traits=traits(
            config.tools.get(name),
            cast("Mapping[str, Any]", annotations) if isinstance(annotations, Mapping) else None,
            config.trust_annotations,
            timeout=config.timeouts.call,
            curated=known.tools.get(name) if known is not None else None,
            table=known.table if known is not None else "",
            operators=config.operators,
        ),
        definition=definition,
        digest=digest_of(definition),
        long=_is_long(config, name, definition, tasks),
        operators=config.operators,
    )


def _is_long(config: ServerConfig, name: str, definition: Mapping[str, Any], tasks: Generation | None) -> bool:
    """Whether calls of a tool are tasks: as the operator says, or else if the server makes tasks of them."""
    said = config.tools[name].long if name in config.tools else None
    if said is not None:
        return said
    return tasks == 2 or (tasks == 1 and task_support(definition) == "required")
