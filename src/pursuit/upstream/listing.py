"""Reads the entries of `tools/list` as `Tool` values.

An unusable entry is left out with a reason; the others are listed. `definition` is the server's JSON, unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Protocol, cast

from pursuit.config.servers import ServerConfig
from pursuit.core.pins import digest_of
from pursuit.core.tools import Tool, Traits
from pursuit.policy.traits import traits
from pursuit.upstream.known_servers import recognised
from pursuit.upstream.tasks import Generation, task_support


class ToolTraits(Protocol):
    """Determines what a server's tool may do. `pursuit.testing.check_tool_traits` checks an implementation."""

    def of(self, server: ServerConfig, definition: Mapping[str, Any]) -> Traits:
        """The traits of a tool, from its entry in `tools/list`; the operator's settings (`server.tools`) come first.

        It is called for each listing, but not for a server of a mission file: the file chose that server's name and
        command line.
        """
        ...


class KnownTraits:
    """The built-in answer: the operator's settings, the table of known servers, then the server's annotations."""

    def of(self, server: ServerConfig, definition: Mapping[str, Any]) -> Traits:
        """See `ToolTraits.of`."""
        name, annotations = definition["name"], definition.get("annotations")
        known = recognised(server)
        return traits(
            server.tools.get(name),
            cast("Mapping[str, Any]", annotations) if isinstance(annotations, Mapping) else None,
            server.trust_annotations,
            timeout=server.timeouts.call,
            curated=known.tools.get(name) if known is not None else None,
            table=known.table if known is not None else "",
            operators=server.operators,
        )


KNOWN_TRAITS = KnownTraits()


def is_offered(config: ServerConfig, tool: str) -> bool:
    """True if the tool is on the operator's list of enabled tools (if one exists) and not disabled."""
    enabled, disabled = config.enabled_tools, config.disabled_tools
    if enabled is not None and not any(fnmatchcase(tool, pattern) for pattern in enabled):
        return False
    return not any(fnmatchcase(tool, pattern) for pattern in disabled)


def read_listing(
    config: ServerConfig,
    entries: Iterable[object],
    *,
    tasks: Generation | None = None,
    source: ToolTraits = KNOWN_TRAITS,
) -> tuple[list[Tool], list[str]]:
    """The usable tools, each name once, and a warning for each entry that is left out.

    `tasks` is the generation of tasks that the server declares, if any; `source` says what the tools may do.
    """
    found: dict[str, Tool] = {}
    warnings: list[str] = []
    for index, entry in enumerate(entries):
        result = _read_entry(config, index, entry, source if config.operators else KNOWN_TRAITS, tasks)
        if isinstance(result, str):
            warnings.append(result)
        elif result.name in found:
            warnings.append(f"{result.qualified}: listed twice; the first one counts")
        elif is_offered(config, result.name):
            found[result.name] = result
    return list(found.values()), warnings


def _read_entry(
    config: ServerConfig, index: int, entry: object, source: ToolTraits, tasks: Generation | None
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
    return Tool(
        server=config.name,
        name=name,
        description=description if isinstance(description, str) else "",
        input_schema=schema,
        traits=source.of(config, definition),
        definition=definition,
        digest=digest_of(definition),
        long=_is_long(config, name, definition, tasks),
        operators=config.operators,
    )


def _is_long(config: ServerConfig, name: str, definition: Mapping[str, Any], tasks: Generation | None) -> bool:
    """True if calls of a tool are tasks, by configuration or else because the server makes them tasks."""
    said = config.tools[name].long if name in config.tools else None
    if said is not None:
        return said
    return tasks == 2 or (tasks == 1 and task_support(definition) == "required")
