"""Which calls may be sent, and what a tool may do."""
