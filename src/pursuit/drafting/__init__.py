"""Criteria drafted from a directive: by templates or by a language model, checked, and shown before use."""
