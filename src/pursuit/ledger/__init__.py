"""Append-only streams of events, durable and verifiable."""
