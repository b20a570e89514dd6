"""The engine: one iteration after another, each effect durable first."""
