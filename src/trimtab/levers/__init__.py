"""One module per technique, all of one shape."""
