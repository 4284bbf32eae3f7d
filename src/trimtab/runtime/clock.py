"""The system's clocks behind the `Clock` port."""

import time


class SystemClock:
    """Implements `Clock` with the machine's own clocks."""

    def wall_s(self) -> float:
        """See `Clock`."""
        return time.time()

    def mono_s(self) -> float:
        """See `Clock`."""
        return time.monotonic()
