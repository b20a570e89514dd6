"""The operator's files: `pursuit.toml`, `mcp.json` and mission files."""
