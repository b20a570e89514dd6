"""A problem as an MCP server: the brief, the tools of its own server, and one submission."""
