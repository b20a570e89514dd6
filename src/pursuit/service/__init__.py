"""The verbs that a surface may call."""
