"""The page: what the fleet does now and why, in a browser."""
