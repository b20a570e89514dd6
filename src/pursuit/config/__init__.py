"""What the operator writes: `pursuit.toml`, `mcp.json` and mission files."""
