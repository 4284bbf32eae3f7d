"""Requests that a replica has and cannot schedule yet: parsing and tokenizing them takes `start_ms`.

They are the replica's from the moment it takes them: they count among its requests, and are lost with it.
"""

from collections.abc import Callable

from trimtab.sim.jobs import Job
from trimtab.sim.kernel import Kernel


class Starts:
    """Requests in their start: `jobs` by id. `started` is told of each when it is over, of none that left before."""

    def __init__(self, kernel: Kernel, started: Callable[[float, Job], None]) -> None:
        self._kernel = kernel
        self._started = started
        self.jobs: dict[int, Job] = {}

    def begin(self, now_s: float, job: Job, start_ms: float) -> None:
        """Take a request; one without a start goes on at once."""
        start_s = now_s + start_ms / 1000.0
        if start_s > now_s:
            self.jobs[job.id] = job
            self._kernel.at(start_s, self._over, job)
        else:
            self._started(now_s, job)

    def drop(self, job: Job) -> bool:
        """Take a request out whose client left; returns whether it was here."""
        if self.jobs.get(job.id) is not job:
            return False
        del self.jobs[job.id]
        return True

    def clear(self) -> list[Job]:
        """Take out and return all of them."""
        jobs = list(self.jobs.values())
        self.jobs.clear()
        return jobs

    def _over(self, now_s: float, job: Job) -> None:
        if self.drop(job):
            self._started(now_s, job)
