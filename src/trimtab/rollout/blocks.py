"""Requests of one block of time, as sources of evidence read them: in order of arrival, by arm, by cut."""

from collections.abc import Iterable, Sequence

from trimtab.core.cuts import Cut, cuts_of
from trimtab.core.record import RequestRecord
from trimtab.core.types import Arm


class Row:
    """A request with its cuts; `candidate`: whether it met the candidate."""

    __slots__ = ("candidate", "cuts", "ok", "record")

    def __init__(self, record: RequestRecord) -> None:
        self.record = record
        self.candidate = record.arm is Arm.CANDIDATE
        self.ok = record.ok
        self.cuts = cuts_of(record)


class Block:
    """A block that is over. `rows` are in order of arrival; `tied`: some arrived at the same moment."""

    __slots__ = ("_by_cut", "number", "rows", "tied")

    def __init__(self, number: int, rows: Iterable[Row]) -> None:
        self.number = number
        self.rows = sorted(rows, key=_arrival)
        at = [row.record.arrived_at_s for row in self.rows]
        self.tied = len(set(at)) < len(at)
        self._by_cut: dict[Cut, list[Row]] | None = None

    def by_cut(self) -> dict[Cut, list[Row]]:
        """Return the rows of each cut that the block has."""
        if self._by_cut is None:
            self._by_cut = {}
            for row in self.rows:
                for cut in row.cuts:
                    self._by_cut.setdefault(cut, []).append(row)
        return self._by_cut

    def within(self, cut: Cut | None) -> Sequence[Row]:
        """Return the rows of a cut, all of them for None."""
        return self.rows if cut is None else self.by_cut().get(cut, ())


def _arrival(row: Row) -> float:
    return row.record.arrived_at_s
