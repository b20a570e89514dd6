"""One MCP server in front of all configured servers; clients see no difference to the originals."""
