"""Wire formats of each engine: bytes to typed events, metric names, launch knobs; no sockets."""
