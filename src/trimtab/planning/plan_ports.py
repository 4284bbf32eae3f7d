"""What the planner needs to know of a layout, and from whom: memory and expected times behind one port."""

from typing import Protocol

from trimtab.core.layout import Demand, Expected, Layout, MemoryFit


class Estimator(Protocol):
    """Says of one replica of a layout what it holds and what it is expected to do.

    Both are asked with `replicas` 1 and the demand of one replica, which may be a fraction of a request per second.
    Neither raises for a layout that the model's sizes allow: what is not known is said in `because` or `notes`.
    """

    def fit(self, layout: Layout, demand: Demand) -> MemoryFit:
        """Account for every byte of the fullest rank."""
        ...

    def expected(self, layout: Layout, demand: Demand) -> Expected:
        """Return the times to expect under a demand."""
        ...
