"""Measure a serving fleet, move the narrowest lever, prove it, take it back."""

__version__ = "0.1.0"
