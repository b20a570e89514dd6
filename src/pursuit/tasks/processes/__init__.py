"""Commands as tasks: processes that outlive us, their output, and their end."""
