"""Frozen data and arithmetic that all layers share: messages, records, terms, limits."""
