"""The MCP server: any client can drive missions."""
