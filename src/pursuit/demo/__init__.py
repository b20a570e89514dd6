"""The example that `pursuit init` writes: a small MCP server with a real engineering problem, and a mission for it."""
