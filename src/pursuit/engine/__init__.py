"""The engine: one turn after another, each effect durable first."""
