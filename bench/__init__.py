"""Measurements: each states what it measured, with what command, on what machine."""
