"""Recorded requests as a workload: lengths, times and shared blocks kept, text made, sizes scaled.

Traces come without text. A block id becomes words drawn from the id alone, so two prompts share
text exactly where the trace says that they shared blocks. Traces of large models do not fit a small
model's context: all inputs are multiplied by one stated factor and all outputs by another. Where a
scaled block would be shorter than a few words, only every k-th block is kept and is given the words
of k blocks: positions are counted from the start of a prompt, so common prefixes stay common.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from trimtab.workloads.base import (
    CHAT_ENDPOINT,
    Message,
    PeakShape,
    PlannedRequest,
    Workload,
    WorkloadError,
    chat_body,
)
from trimtab.workloads.words import block_words

BLOCK_WORDS_MIN: Final = 4
# The chat template and the system prompt that some models' templates put in by themselves.
TEMPLATE_TOKENS: Final = 40


class TraceParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a recorded trace becomes a workload that fits a model."""

    context_tokens: Annotated[
        int, Meta(ge=128, le=10_000_000, description="Context of one slot of the model, tokens.")
    ] = 2_048
    output_tokens_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="The longest output after scaling, tokens.")
    ] = 64
    input_factor: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Factor of all inputs; None takes the largest at which every prompt fits the context."""
    time_factor: Annotated[
        float, Meta(gt=0, le=1_000, description="Factor of all times; 0.1 plays ten times as fast.")
    ] = 1.0
    requests_max: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None
    """Take only this many of the first requests; None takes all."""
    rate_per_s: Annotated[
        float,
        Meta(gt=0, le=10_000, description="Arrivals per second of bodies that carry no times."),
    ] = 1.0
    session_gap_s: Annotated[
        float,
        Meta(ge=0, le=86_400, description="Seconds between session starts in a trace of sessions."),
    ] = 30.0
    seed: Annotated[
        int, Meta(ge=0, description="Seed of texts, and of arrivals where a file has no times.")
    ] = 1


class TraceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a trace, before scaling."""

    line: int
    at_s: float
    session: str
    input_tokens: int
    output_tokens: int
    scope: str
    """Within which block ids mean the same text, e.g. one session, or "" for the whole file."""
    runs: tuple[tuple[int, int], ...]
    """The prompt's block ids in order, as runs of (first id, count) of consecutive ids. A block is
    `block_tokens` long, the last one may be shorter."""
    label: str
    answer_runs: tuple[tuple[int, int], ...] = ()
    """The same of its answer, where later prompts can be like it; its blocks go on where the prompt's end."""


def render_trace(
    name: str,
    file: str,
    records: Sequence[TraceRecord],
    params: TraceParams,
    *,
    block_tokens: int,
    description: str,
) -> Workload:
    """Scale records, give them text, and order them by intended time (the first is sent at 0).

    Raises WorkloadError where there is no record, or a stated input factor lets a prompt outgrow
    the context.
    """
    if not records:
        raise WorkloadError(f"{file}: no request in it; give a file with at least one")
    ordered = sorted(records, key=lambda record: record.at_s)[: params.requests_max]
    output_factor = min(1.0, params.output_tokens_max / max(1, *(r.output_tokens for r in ordered)))
    input_factor = _choose_input_factor(file, ordered, params)
    stride, words = _scale_blocks(block_tokens * input_factor)
    start_s = ordered[0].at_s
    turns: dict[str, int] = defaultdict(int)
    requests: list[PlannedRequest] = []
    writer = _BlockWriter(params.seed, stride, words)
    for index, record in enumerate(ordered):
        input_tokens = max(1, math.floor(record.input_tokens * input_factor))
        output_tokens = max(1, math.floor(record.output_tokens * output_factor))
        text = writer.prompt_text(record, input_tokens)
        requests.append(
            PlannedRequest(
                index=index,
                session=record.session,
                turn=turns[record.session],
                send_at_s=(record.at_s - start_s) * params.time_factor,
                endpoint=CHAT_ENDPOINT,
                body=chat_body(
                    [Message("user", text)], max_tokens=output_tokens, temperature=0.0, seed=index
                ),
                label=record.label,
                expected_output_tokens=output_tokens,
            )
        )
        turns[record.session] += 1
    return Workload(
        name=name,
        seed=params.seed,
        requests=tuple(requests),
        description=description,
        scale={
            "input_factor": input_factor,
            "output_factor": output_factor,
            "time_factor": params.time_factor,
            "block_tokens": block_tokens,
            "blocks_kept_every": stride,
            "block_words": words,
            "context_tokens": params.context_tokens,
        },
        peak=flat_peak(requests),
    )


def flat_peak(requests: Sequence[PlannedRequest]) -> PeakShape:
    """Give the peak of recorded arrivals: one cycle as long as the record, nothing added to it."""
    return PeakShape(period_s=min(86_400.0, max(1.0, requests[-1].send_at_s)), low=1.0, high=1.0)


def _choose_input_factor(file: str, records: Sequence[TraceRecord], params: TraceParams) -> float:
    room_tokens = params.context_tokens - params.output_tokens_max - TEMPLATE_TOKENS
    longest = max(records, key=lambda record: record.input_tokens)
    if room_tokens < 1:
        raise WorkloadError(
            f"context_tokens: {params.context_tokens} leaves no room beside output_tokens_max"
            f" {params.output_tokens_max}; raise it or lower output_tokens_max"
        )
    fitting = min(1.0, room_tokens / max(1, longest.input_tokens))
    if params.input_factor is not None and params.input_factor > fitting:
        raise WorkloadError(
            f"{file}, line {longest.line}: {longest.input_tokens} input tokens times input_factor"
            f" {params.input_factor} do not fit context_tokens {params.context_tokens}; leave"
            f" input_factor out or set it to at most {fitting:.6f}"
        )
    return fitting if params.input_factor is None else params.input_factor


def _scale_blocks(scaled_tokens: float) -> tuple[int, int]:
    """Give every how many blocks one is kept, and its words, for a block of a scaled size."""
    stride = max(1, math.ceil(BLOCK_WORDS_MIN / scaled_tokens))
    return stride, max(1, round(scaled_tokens * stride))


class _BlockWriter:
    """Writes prompts out of block ids; remembers the words of ids it has written."""

    def __init__(self, seed: int, stride: int, words: int) -> None:
        self._seed = seed
        self._stride = stride
        self._words = words
        self._written: dict[tuple[str, int], str] = {}

    def prompt_text(self, record: TraceRecord, input_tokens: int) -> str:
        """Join the words of every `stride`-th block up to the prompt's length in tokens.

        Rounding a block to whole words may leave a prompt up to an eighth short. It is not filled
        up: what followed the last block would separate it from the next request's prompt.
        """
        whole, rest = divmod(input_tokens, self._words)
        texts: list[str] = []
        at = 0
        for first, count in record.runs:
            skip = -at % self._stride
            ids = range(first + skip, first + count, self._stride)
            texts.extend(self._block_text(record.scope, block) for block in ids)
            at += count
            if len(texts) > whole:
                texts[whole:] = [" ".join(texts[whole].split()[:rest])] if rest else []
                break
        return " ".join(texts)

    def _block_text(self, scope: str, block: int) -> str:
        text = self._written.get((scope, block))
        if text is None:
            text = " ".join(block_words(f"{self._seed}:{scope}:{block}", self._words))
            self._written[scope, block] = text
        return text


def to_runs(ids: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Write block ids as runs of (first id, count)."""
    runs: list[tuple[int, int]] = []
    for block in ids:
        first, count = runs[-1] if runs else (block, 0)
        if count and block == first + count:
            runs[-1] = (first, count + 1)
        else:
            runs.append((block, 1))
    return tuple(runs)
