"""A problem as an MCP server: the brief, the tools of the problem's server, and one submission."""
