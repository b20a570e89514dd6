"""MCP tasks of both generations, from one durable record."""
