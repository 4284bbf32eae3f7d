"""From evidence to a diagnosis: which phase and which resource binds."""
