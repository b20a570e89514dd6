"""The verbs that a surface may call."""

from pursuit.service.service import Service, Started

__all__ = ["Service", "Started"]
