"""Bridges to model libraries. Each is imported by name and needs its library installed."""
