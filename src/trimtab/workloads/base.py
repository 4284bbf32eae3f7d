"""What a workload is: requests with intended send times, nothing else.

A workload is made before anything is sent. Every request already has its body and its intended
time (open loop), so two arms of a comparison receive the same bytes at the same times, and a slow
server cannot slow its own load down. Generators take their randomness and their texts as
arguments; reading files and sending requests belong to the runtime.
"""

import math
import random
import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

CHAT_ENDPOINT: Final = "/v1/chat/completions"
COMPLETIONS_ENDPOINT: Final = "/v1/completions"
MODEL_NAME: Final = "default"

Role = Literal["system", "user", "assistant"]


class WorkloadError(ValueError):
    """A workload cannot be made; the message names file, line and field where there is one, and the fix."""


class Message(msgspec.Struct, frozen=True):
    """One chat message of a request body."""

    role: Role
    content: str


class PeakShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The workload's own compressed peak: a cycle of the arrival rate, as a raised cosine.

    A real peak cycle is a day; a workload of minutes carries one of its own, named as such. The
    cycle starts at `low`, reaches `high` at half the period, and its mean is (low + high) / 2.
    """

    period_s: Annotated[
        float, Meta(gt=0, le=86_400, description="Length of one peak cycle, seconds.")
    ] = 60.0
    low: Annotated[
        float, Meta(ge=0, le=10, description="Rate multiplier at the quiet end of the cycle.")
    ] = 0.6
    high: Annotated[
        float, Meta(gt=0, le=10, description="Rate multiplier at the busy end of the cycle.")
    ] = 1.4

    def __post_init__(self) -> None:
        if self.high < self.low:
            raise ValueError("high must be at least low: exchange them or set them equal")

    def multiplier(self, at_s: float) -> float:
        """Give the rate multiplier at a time, in seconds from the start of the run."""
        phase = 2.0 * math.pi * at_s / self.period_s
        return self.low + (self.high - self.low) * 0.5 * (1.0 - math.cos(phase))


class PlannedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a workload, ready to send."""

    index: int
    """Position in the workload, from 0."""
    session: str
    """Opaque session name; the turns of one session are sent in order."""
    turn: int
    """Turn within the session, from 0."""
    user: str | None = None
    """Who sends it: a user waits for an answer before sending anything else. None: only the session waits."""
    send_at_s: float
    """Intended send time, seconds from the start of the run (open loop)."""
    endpoint: str
    """`/v1/chat/completions` or `/v1/completions`."""
    body: bytes
    """The JSON body, ready to send; its model is "default" unless a file says otherwise."""
    label: str
    """Workload label, e.g. "edit", "question", "chat"."""
    expected_text: str | None = None
    """The answer an edit should give, where the generator knows it."""
    expected_output_tokens: int | None = None
    """Output tokens the source states or estimates; None where it says nothing."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A named, seeded, fully planned list of requests in order of intended send time."""

    name: str
    seed: int
    requests: tuple[PlannedRequest, ...]
    description: str
    scale: dict[str, float | int]
    """What was scaled and by how much, e.g. {"input_factor": 0.02}; factors are 1.0 where unscaled."""
    peak: PeakShape


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = True


class _ChatBody(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    messages: list[Message]
    max_tokens: int
    temperature: float
    stream: bool
    stream_options: _StreamOptions
    seed: int


def chat_body(
    messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int
) -> bytes:
    """Encode a streaming chat completion body; `seed` fixes the engine's sampling where it samples."""
    return msgspec.json.encode(
        _ChatBody(
            model=MODEL_NAME,
            messages=list(messages),
            max_tokens=max_tokens,
            temperature=temperature,
            stream=True,
            stream_options=_StreamOptions(),
            seed=seed,
        )
    )


# Measured with SmolLM2's own tokenizer; see estimate_tokens.
BYTES_PER_TOKEN_PROSE: Final = 4.8
BYTES_PER_TOKEN_CODE: Final = 3.3
CODE_MARK_SHARE: Final = 0.08
_CODE_MARK: Final = re.compile(rb"[(){}\[\]_=<>:;`]")


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text from its bytes, without a tokenizer.

    4.8 bytes per token for prose, 3.3 for code, interpolated by the share of code punctuation
    (all code from 8% on). Fitted to SmolLM2's tokenizer: within 5% on average over short functions,
    whole modules, questions and answers; single short texts differ by up to a third. An estimate serves
    planning only: what was really sent is reported by the engine.
    """
    raw = text.encode()
    if not raw:
        return 0
    codeness = min(1.0, len(_CODE_MARK.findall(raw)) / (CODE_MARK_SHARE * len(raw)))
    per_token = BYTES_PER_TOKEN_PROSE + (BYTES_PER_TOKEN_CODE - BYTES_PER_TOKEN_PROSE) * codeness
    return max(1, math.ceil(len(raw) / per_token))


TEMPLATE_TOKENS_PER_MESSAGE: Final = 5
TEMPLATE_TOKENS_PER_PROMPT: Final = 3


def estimate_prompt_tokens(messages: Sequence[Message]) -> int:
    """Estimate the tokens of a chat prompt, the model's template around each message included."""
    texts = sum(estimate_tokens(message.content) for message in messages)
    return texts + TEMPLATE_TOKENS_PER_MESSAGE * len(messages) + TEMPLATE_TOKENS_PER_PROMPT


def arrivals(
    rate_per_s: float, duration_s: float, peak: PeakShape, rng: random.Random
) -> tuple[float, ...]:
    """Draw Poisson arrival times over a duration, thinned by the peak cycle (Lewis and Shedler).

    `rate_per_s` is the rate at multiplier 1; the mean rate is `rate_per_s * (low + high) / 2` over
    whole cycles. Raises WorkloadError where the rate or the duration is not above zero.
    """
    if not rate_per_s > 0 or not math.isfinite(rate_per_s):
        raise WorkloadError(f"rate_per_s is {rate_per_s}: give a rate above 0 requests per second")
    if not duration_s > 0 or not math.isfinite(duration_s):
        raise WorkloadError(f"duration_s is {duration_s}: give a duration above 0 seconds")
    times: list[float] = []
    now_s = 0.0
    while True:
        now_s += rng.expovariate(rate_per_s * peak.high)
        if now_s >= duration_s:
            return tuple(times)
        if rng.random() * peak.high < peak.multiplier(now_s):
            times.append(now_s)


def first_arrivals(
    rate_per_s: float, count: int, peak: PeakShape, rng: random.Random
) -> tuple[float, ...]:
    """Draw the first `count` arrival times of the same process as `arrivals`."""
    if count < 1:
        raise WorkloadError(f"requests is {count}: ask for at least 1 request")
    mean_multiplier = 0.5 * (peak.low + peak.high)
    window_s = max(peak.period_s, count / (rate_per_s * mean_multiplier))
    times: list[float] = []
    start_s = 0.0
    # A window is a whole number of cycles, so that the next one starts at the same phase.
    window_s = math.ceil(window_s / peak.period_s) * peak.period_s
    while len(times) < count:
        times.extend(start_s + at_s for at_s in arrivals(rate_per_s, window_s, peak, rng))
        start_s += window_s
    return tuple(times[:count])


_LOOP_TOKEN: Final = re.compile(r"\w+|[^\w\s]")
_ENUMERATOR: Final = re.compile(r"^\s*(?:[-*#>]+|\(?\d+[.):])\s*")
LOOP_PERIOD_TOKENS_MAX: Final = 64
LOOP_PERIOD_LINES_MAX: Final = 8
LOOP_SCAN_CHARS_MAX: Final = 8_000
LOOP_REPEATS_MIN: Final = 4
LOOP_SHARE_MIN: Final = 0.4


def looks_looping(text: str) -> bool:
    """Say whether an output is caught in a repetition loop (words, lines or paragraphs).

    Such an output is perfectly predictable, so a draft always hits: it would count as a gain of
    speculation that no user wants. A loop is a unit of at most 64 tokens, or of at most 8 lines
    apart from their list numbers, that repeats back to back at least four times (three for units
    of eight tokens or more, and for lines) and fills at least 40% of the text. Only the last 8,000
    characters are looked at, which bounds the cost.
    """
    text = text[-LOOP_SCAN_CHARS_MAX:]
    tokens = _LOOP_TOKEN.findall(text)
    if _repeats_back_to_back(tokens, LOOP_PERIOD_TOKENS_MAX, short_unit=8):
        return True
    lines = [_ENUMERATOR.sub("", line).strip() for line in text.splitlines()]
    spoken = [line for line in lines if line]
    wordy = [line if len(line.split()) > 1 else f"{line}\0{at}" for at, line in enumerate(spoken)]
    return _repeats_back_to_back(wordy, LOOP_PERIOD_LINES_MAX, short_unit=1)


def _repeats_back_to_back(units: Sequence[str], period_max: int, *, short_unit: int) -> bool:
    """Say whether some period fills enough of the units with enough repeats."""
    count = len(units)
    if not _may_repeat(units, period_max):
        return False
    for period in range(1, min(period_max, count // 3) + 1):
        start, length = _longest_run(units, period)
        repeats_min = LOOP_REPEATS_MIN if period < short_unit else LOOP_REPEATS_MIN - 1
        if length < period * repeats_min or length < LOOP_SHARE_MIN * count:
            continue
        if any(any(c.isalnum() for c in unit) for unit in units[start : start + period]):
            return True
    return False


def _may_repeat(units: Sequence[str], period_max: int) -> bool:
    """Say False where no period can fill enough of the units, at a cost that hardly grows with them.

    A run that is long enough, of at least three repeats, has two thirds of its units equal to those a period before.
    Cut into pieces of half that length, the units have one piece that lies in it as a whole and so stands a period
    earlier too.
    """
    count = len(units)
    size = max(1, int(LOOP_SHARE_MIN * count * 2.0 / 3.0) // 2)
    letters = dict(zip(dict.fromkeys(units), map(chr, range(count)), strict=False))
    text = "".join(map(letters.__getitem__, units))
    return any(
        text.find(text[at : at + size], max(0, at - period_max), at + size - 1) >= 0
        for at in range(size, count - size + 1, size)
    )


def _longest_run(units: Sequence[str], period: int) -> tuple[int, int]:
    """Give start and length of the longest stretch in which each unit equals the one a period before."""
    best_start, best_length, matched = 0, 0, 0
    for at in range(period, len(units)):
        matched = matched + 1 if units[at] == units[at - period] else 0
        if matched and matched + period > best_length:
            best_start, best_length = at - matched - period + 1, matched + period
    return best_start, best_length
