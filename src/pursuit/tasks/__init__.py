"""Long work with a durable record: it outlives connections, terminals and processes."""
