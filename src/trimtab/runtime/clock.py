"""The system's clocks behind the `Clock` port."""

import time


class SystemClock:
    """Implements `Clock` with the machine's own clocks."""

    # The functions themselves: the time is asked for every event of every stream.
    wall_s = staticmethod(time.time)
    mono_s = staticmethod(time.monotonic)
