"""All evidence of one lever: what its gates are measured from, fed block by block."""

from collections.abc import Iterable
from typing import assert_never

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.gate import GateSpec, Metric, Question, Statistic
from trimtab.core.lever import LeverRecord
from trimtab.core.types import Technique
from trimtab.rollout.blocks import Block
from trimtab.rollout.bounds import all_stop_bounds
from trimtab.rollout.comparison import (
    computed_share,
    output_tokens_per_s,
    own_output_tokens_per_s,
    request_value,
)
from trimtab.rollout.costs import UnitCost
from trimtab.rollout.sources import BlockRatio, Memory, RequestRatio, Source, Tail
from trimtab.rollout.validity import InvalidOutputs
from trimtab.rollout.vetoes import CutWatch

Key = tuple[Metric, Statistic, Cut | None, bool, bool]
"""What makes two gates read the same source: metric, statistic, cut, matched batch, whether all shares count."""


def key_of(spec: GateSpec) -> Key:
    """Return which source a gate reads."""
    gain = spec.question is Question.GAIN
    return spec.metric, spec.statistic, spec.cut, spec.matched_batch, gain


class Evidence:
    """The sources of a record's gates. A gain is measured over all shares, everything else at the present one."""

    def __init__(self, record: LeverRecord) -> None:
        self._record = record
        self._stops = [bound.gate for bound in all_stop_bounds(record) if bound.gate is not None]
        self.sources: dict[Key, Source] = self._made(gains=True) | self._made(gains=False)
        self.cuts = CutWatch(record)
        self.prompt_tokens = PromptTokens()

    def take(self, block: Block, *, is_fresh: bool) -> None:
        """Take the next block; `is_fresh`: it is of the share at which harm is judged."""
        for key, source in self.sources.items():
            if is_fresh or key[4]:
                source.take(block)
        if is_fresh:
            self.cuts.take(block)
            self.prompt_tokens.take(block)

    def begin_share(self) -> None:
        """Forget what was measured for anything but gains: harm is judged anew."""
        self.sources |= self._made(gains=False)
        self.cuts = CutWatch(self._record)
        self.prompt_tokens = PromptTokens()

    def copy(self) -> "Evidence":
        """Return one that goes on from here by itself."""
        made = Evidence.__new__(Evidence)
        made._record, made._stops = self._record, self._stops
        made.sources = {key: source.copy() for key, source in self.sources.items()}
        made.cuts = self.cuts.copy()
        made.prompt_tokens = self.prompt_tokens.copy()
        return made

    def _made(self, *, gains: bool) -> dict[Key, Source]:
        alphas: dict[Key, set[float]] = {}
        first: dict[Key, GateSpec] = {}
        for spec in self._record.gates:
            if (spec.question is Question.GAIN) is gains:
                alphas.setdefault(key_of(spec), set(self._stops)).add(spec.alpha)
                first.setdefault(key_of(spec), spec)
        found = {key: self._source(spec, alphas[key]) for key, spec in first.items()}
        return {key: source for key, source in found.items() if source is not None}

    def _source(self, spec: GateSpec, alphas: Iterable[float]) -> Source | None:
        """Return a new source for a gate; None for what does not come block by block (`rollout.gates`)."""
        cut, matched = spec.cut, spec.matched_batch
        match spec.metric:
            case Metric.TTFT_MS | Metric.TPOT_MS | Metric.CHUNK_GAP_MS | Metric.E2E_MS:
                return self._latency(spec, alphas)
            case Metric.OUTPUT_TOKENS_PER_S if matched:
                value_of = own_output_tokens_per_s
                return RequestRatio(
                    value_of, cut=cut, alphas=alphas, matched=True, higher_is_better=True
                )
            case Metric.OUTPUT_TOKENS_PER_S:
                return BlockRatio(
                    output_tokens_per_s, cut=cut, alphas=alphas, higher_is_better=True
                )
            case Metric.PROMPT_TOKENS_COMPUTED:
                return BlockRatio(computed_share, cut=cut, alphas=alphas)
            case Metric.UNIT_COST:
                return UnitCost(cut=cut, alphas=alphas, matched=matched)
            case Metric.MEMORY_BYTES:
                return Memory(cut)
            case Metric.INVALID_OUTPUT_RATE:
                return InvalidOutputs(cut)
            case (
                Metric.ERROR_RATE
                | Metric.OUTPUT_DIFFERENCE
                | Metric.QUALITY_LOSS
                | Metric.SLICE_SHARE
            ):
                return None
            case _:
                assert_never(spec.metric)

    def _latency(self, spec: GateSpec, alphas: Iterable[float]) -> Source:
        value_of = request_value(spec.metric)
        assert value_of is not None, "only latencies come here"
        # A model that repeats itself is easy to draft for; nobody wants that output faster.
        speculates = self._record.technique is Technique.SPECULATION
        drops_loops = speculates and spec.metric is Metric.TPOT_MS
        if spec.statistic is Statistic.TAIL_P95:
            return Tail(value_of, cut=spec.cut, drops_loops=drops_loops)
        return RequestRatio(
            value_of,
            cut=spec.cut,
            alphas=alphas,
            matched=spec.matched_batch,
            drops_loops=drops_loops,
        )


class PromptTokens:
    """The prompt tokens of the traffic by cut of input tokens, to tell what evaluations cover."""

    def __init__(self) -> None:
        self.by_cut: dict[str, int] = {}

    def take(self, block: Block) -> None:
        """Count the block's prompts."""
        for row in block.rows:
            cut = next((cut for cut in row.cuts if cut.dimension is Dimension.INPUT_TOKENS), None)
            name = str(cut)
            self.by_cut[name] = self.by_cut.get(name, 0) + (row.record.tokens.prompt or 0)

    def copy(self) -> "PromptTokens":
        """Return one that goes on from here by itself."""
        made = PromptTokens()
        made.by_cut = dict(self.by_cut)
        return made
