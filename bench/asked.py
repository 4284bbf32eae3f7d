"""What benchmarks say that `make bench` runs without arguments and that need some."""

import sys


def explained(doc: str | None) -> bool:
    """Print a benchmark's own words if it was asked for nothing, and return whether it was."""
    if len(sys.argv) > 1:
        return False
    print(f"Not run: it needs arguments.\n\n{(doc or '').strip()}")
    return True
