"""One MCP server in front of all configured ones, which a client cannot tell from the originals."""
