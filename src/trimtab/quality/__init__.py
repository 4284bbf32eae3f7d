"""Whether a change of precision changes what users get: scores, paired tests, the ladder and what to choose from it."""
