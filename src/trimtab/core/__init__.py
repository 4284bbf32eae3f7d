"""Nouns and mathematics: no clock, no socket, no await."""
