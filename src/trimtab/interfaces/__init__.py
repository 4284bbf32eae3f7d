"""What a person or a script talks to: command line, page and report."""
