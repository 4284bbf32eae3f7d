"""Step times that several engines' kernel tables agree on.

Engines share kernels, and each takes the fastest that it has. A table that makes a step slower than most engines'
tables do on the same device was measured on a kernel that its engine has since replaced, or fell back to for want of a
better one. So a time is the engine's own, but never more than the median over the engines that have one. Without
own tables it is that median. Tables that were extended to shapes nobody measured count only where there are no others.
What all tables get wrong stays wrong.
"""

import math
from collections.abc import Callable, Sequence
from statistics import median

from trimtab.planning.kernel_port import StepTimes


class AgreedTimes:
    """The own times of an engine, bounded by what the tables of others say of the same device and layout."""

    def __init__(self, own: StepTimes | None, others: Sequence[StepTimes]) -> None:
        told: tuple[StepTimes, ...] = (*(() if own is None else (own,)), *others)
        measured = tuple(times for times in told if not times.extended)
        known = measured or told
        if not known:
            raise ValueError("there are no times to agree on")
        own = known[0] if own is known[0] else None
        self._own = own
        self._all = known
        self.source = known[0].source
        self.extended = not measured
        note = "bounded by the median over the tables of several engines"
        borrowed = "no measured kernels of its own: the median over those of other engines"
        added = (borrowed,) if own is None else (note,) if len(known) > 1 else ()
        self.notes: tuple[str, ...] = (*known[0].notes, *added)
        self._known: dict[tuple[object, ...], float] = {}

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """Return one decode step of a batch at a context."""
        return self._agreed(
            ("decode", batch, context_tokens), lambda times: times.decode_ms(batch, context_tokens)
        )

    def communication_ms(self, batch: float, context_tokens: float) -> float | None:
        """Return the collectives' part by the engine's own tables, kept in proportion to the agreed step."""
        first = self._all[0]
        part = first.communication_ms(batch, context_tokens)
        if part is None:
            return None
        scale = self.decode_ms(batch, context_tokens) / first.decode_ms(batch, context_tokens)
        return part * scale

    def prefill_ms(
        self, prompt_tokens: float, cached_tokens: float, *, busy_share: float = 1.0
    ) -> float:
        """Return one step that computes a whole prompt."""
        return self._agreed(
            ("prefill", prompt_tokens, cached_tokens, busy_share),
            lambda times: times.prefill_ms(prompt_tokens, cached_tokens, busy_share=busy_share),
        )

    def beside_ms(
        self,
        chunk_tokens: float,
        prompt_tokens: float,
        cached_tokens: float,
        batch: float,
        *,
        busy_share: float = 1.0,
    ) -> float:
        """Return what a prompt's chunk adds to a step of decoding streams; never below 0."""
        return self._agreed(
            ("beside", chunk_tokens, prompt_tokens, cached_tokens, batch, busy_share),
            lambda times: times.beside_ms(
                chunk_tokens, prompt_tokens, cached_tokens, batch, busy_share=busy_share
            ),
        )

    def _agreed(self, key: tuple[object, ...], ask: Callable[[StepTimes], float]) -> float:
        if key not in self._known:
            told = [ask(times) for times in self._all]
            middle = float(median(told))
            own = math.inf if self._own is None else told[0]
            self._known[key] = min(own, middle) if len(told) > 1 else told[0]
        return self._known[key]
