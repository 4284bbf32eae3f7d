"""Closes blocks of time over the requests of one rollout, each once, so that a look costs what is new.

Law: the answer at any time is that of all requests seen so far. A block is fed to the evidence when it is over
(`Frame.end`). A request that ends after that is put into its block: the evidence goes back to a mark before it and
takes the blocks since again, which changes nothing else. Marks are `MARK_BLOCKS` apart and two are kept.

Failure mode: a request that ends more than `MARK_BLOCKS` blocks after its own is counted (`late`) and not judged; its
errors are.
"""

from typing import Final

import msgspec

from trimtab.core.gate import GateResult, Metric
from trimtab.core.lever import LeverRecord
from trimtab.core.record import RequestRecord
from trimtab.rollout.blocks import Block, Row
from trimtab.rollout.cold import cold_note
from trimtab.rollout.evidence import Evidence
from trimtab.rollout.rates import Errors
from trimtab.rollout.saturation import Waiting
from trimtab.rollout.validity import Validity

MARK_BLOCKS: Final = 12


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """Which blocks count: from `first` on, for harm from `fresh_from` on, neither before `warm_from` nor from `end` on.

    `skipped` never count; `end` None: all blocks are over.
    """

    first: int = 0
    fresh_from: int = 0
    warm_from: int = 0
    end: int | None = None
    skipped: frozenset[int] = frozenset()


class Closing:
    """The evidence of a rollout, kept up to date. `evidence`: of blocks that are over; errors count at once."""

    def __init__(self, record: LeverRecord) -> None:
        self.evidence = Evidence(record)
        self.errors = {
            gate.cut: Errors(gate.cut) for gate in record.gates if gate.metric is Metric.ERROR_RATE
        }
        self.validity = Validity()
        self.waiting = Waiting()
        self.late = 0
        self._frame = Frame()
        self._rows: dict[int, list[Row]] = {}
        self._next = 0
        self._redo: int | None = None
        self._marks: list[tuple[int, Evidence]] = [(0, self.evidence.copy())]
        self._cold: dict[int, list[RequestRecord]] = {}
        self._cold_note: str | None = None
        self.remembered: dict[str, tuple[object, GateResult]] = {}
        """Answers by gate, with all that they follow from, so that a look at nothing new asks nothing."""

    def take(self, number: int, row: Row) -> None:
        """Take a finished request of a block."""
        frame = self._frame
        if number < frame.first or number in frame.skipped:
            return
        if number >= frame.fresh_from:
            self._count(number, row)
        if number < self._next:
            if number < self._marks[0][0]:
                self.late += 1
                return
            self._redo = number if self._redo is None else min(self._redo, number)
        self._rows.setdefault(number, []).append(row)

    def advance(self, frame: Frame) -> None:
        """Close the blocks that are over now; a new share begins to be judged anew."""
        before, self._frame = self._frame, frame
        for number in [n for n in self._rows if n < frame.first or n in frame.skipped]:
            del self._rows[number]
        if frame != before:
            start = max(frame.first, frame.fresh_from)
            self.validity.forget(start, frame.skipped)
            self.waiting.forget(start, frame.skipped)
            for errors in self.errors.values():
                errors.forget(start, frame.skipped)
        if (frame.fresh_from, frame.warm_from) != (before.fresh_from, before.warm_from):
            self._begin_share()
        self._go_back()
        over = [n for n in self._rows if n >= self._next and (frame.end is None or n < frame.end)]
        self._close(sorted(over))
        end = max(over, default=-1) + 1 if frame.end is None else frame.end
        self._next = max(self._next, end)

    def cold_note(self) -> str:
        """Say what the requests of the warm-up met."""
        if self._cold_note is None:
            cold = [one for block in self._cold.values() for one in block]
            self._cold_note = cold_note(cold)
        return self._cold_note

    def _count(self, number: int, row: Row) -> None:
        for errors in self.errors.values():
            errors.take(number, row)
        self.validity.take(number, row)
        self.waiting.take(number, row)

    def _begin_share(self) -> None:
        """Judge harm from the frame's share on; what is over of it already is taken again."""
        self.evidence.begin_share()
        self.remembered.clear()
        start = self._fresh_start()
        if any(start <= number < self._next for number in self._rows):
            self._redo = start if self._redo is None else min(self._redo, start)

    def _go_back(self) -> None:
        """Take blocks again in which a request ended late."""
        redo, self._redo = self._redo, None
        if redo is None:
            return
        while len(self._marks) > 1 and self._marks[-1][0] > redo:
            self._marks.pop()
        at, evidence = self._marks[-1]
        self.evidence = evidence.copy()
        self.remembered.clear()
        if at <= self._fresh_start():
            # The mark may be of an earlier share.
            self.evidence.begin_share()
        self._close(sorted(number for number in self._rows if at <= number < self._next))

    def _close(self, numbers: list[int]) -> None:
        for number in numbers:
            if number - self._marks[-1][0] >= MARK_BLOCKS:
                self._mark(number)
            rows = self._rows[number]
            if number < self._frame.warm_from:
                self._cold[number] = [row.record for row in rows]
                self._cold_note = None
                continue
            fresh = number >= self._fresh_start()
            self.evidence.take(Block(number, rows), is_fresh=fresh)

    def _fresh_start(self) -> int:
        return max(self._frame.fresh_from, self._frame.warm_from)

    def _mark(self, number: int) -> None:
        self._marks = [self._marks[-1], (number, self.evidence.copy())]
        oldest = self._marks[0][0]
        for old in [each for each in self._rows if each < oldest]:
            del self._rows[old]
