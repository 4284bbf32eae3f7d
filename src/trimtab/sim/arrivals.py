"""What arrives in a simulation: requests as lengths, times and block names, from traces or made up.

No text is made. Blocks are named as the replica counts them: a trace's block of 512 tokens becomes 32 names of 16, so
that reuse is found at the grain at which an engine finds it. Names are integers of 64 bits drawn from (trace, scope,
block, part); equal names mean equal text up to there, as in the traces.

Scaling a rate: `stretch` divides all gaps, which keeps the shape of bursts relative to the mean but shortens them;
`overlay` lays copies of the trace over each other, each shifted by a drawn time and with names of its own, which keeps
the length of bursts and smooths them as independent users do. Copies share nothing, so hit shares stay as they were.

Source of the diurnal shape: a raised cosine, as in `workloads.base.PeakShape`.
"""

import bisect
import heapq
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from trimtab.workloads.base import WorkloadError
from trimtab.workloads.traces import TraceRecord

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15

NAMES_BYTES_MAX: Final = 4 << 30
"""Most memory that the names of a trace's blocks may take."""

_REFERENCE_BYTES, _NAME_BYTES = 8, 64
"""Of a name in a prompt, and of one that is new, with its share of the tables that find it."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request to come. `hashes` names its prompt's full blocks; `session` keeps turns together.

    `after`: names of the further full blocks that prompt and answer make together, where later prompts can be like it.
    """

    at_s: float
    session: str
    input_tokens: int
    output_tokens: int
    hashes: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    label: str = ""


def mix(value: int) -> int:
    """Return 64 well-mixed bits of an integer (the finalizer of splitmix64; Steele, Lea, Flood, 2014)."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def from_records(
    records: Sequence[TraceRecord],
    *,
    trace_block_tokens: int,
    block_tokens: int,
    shared: bool = True,
    horizon_s: float = math.inf,
    file: str = "the trace",
) -> list[Arrival]:
    """Return the requests of a trace in order of time, the first at 0, with blocks named at an engine's grain.

    `shared`: the trace says which blocks are equal; else no prompt shares any. Blocks of a trace that are no multiple
    of the engine's are cut to whole ones. What comes later than `horizon_s` after the first is left out. Raises
    `WorkloadError` without requests, and where the names would take more than `NAMES_BYTES_MAX`.
    """
    if not records:
        raise WorkloadError(f"{file}: the trace has no request; give one with at least one")
    ordered = sorted(records, key=lambda record: record.at_s)
    start_s = ordered[0].at_s
    namer = _Namer(trace_block_tokens, block_tokens)
    made: list[Arrival] = []
    for record in ordered:
        if record.at_s - start_s > horizon_s:
            break
        names = namer.names(record) if shared else ()
        if namer.bytes > NAMES_BYTES_MAX:
            raise WorkloadError(
                f"{file}, line {record.line}: the blocks of {len(made) + 1:,} prompts up to "
                f"{record.at_s - start_s:,.0f} s take more than {NAMES_BYTES_MAX >> 30} GiB when named by "
                f"{block_tokens} tokens; simulate less of it (duration_s) or larger blocks (block_tokens)"
            )
        whole = record.input_tokens // block_tokens
        made.append(
            Arrival(
                at_s=record.at_s - start_s,
                session=record.session,
                input_tokens=max(1, record.input_tokens),
                output_tokens=max(1, record.output_tokens),
                hashes=names[:whole],
                after=names[whole:],
                label=record.label,
            )
        )
    return made


class _Namer:
    """Names the engine's blocks of a prompt out of the trace's; remembers the scopes it has met.

    Equal names are one object, whichever prompts they are in: prompts of a session repeat each other nearly whole.
    `bytes`: about what all names take so far.
    """

    def __init__(self, trace_block_tokens: int, block_tokens: int) -> None:
        self.bytes = 0
        self._coarse = trace_block_tokens
        self._fine = block_tokens
        self._scopes: dict[str, int] = {}
        self._parts: dict[tuple[int, int], tuple[int, ...]] = {}
        self._known: dict[int, int] = {}
        self._counted = 0

    def names(self, record: TraceRecord) -> tuple[int, ...]:
        """Return a name for each full block of the engine's size, those that only the answer fills at the end."""
        scope = self._scopes.setdefault(record.scope, mix(len(self._scopes) << 40))
        answer = sum(count for _, count in record.answer_runs) * self._coarse
        whole = (record.input_tokens + answer) // self._fine
        runs = (*record.runs, *record.answer_runs)
        ids = itertools.chain.from_iterable(range(first, first + count) for first, count in runs)
        self.bytes += _REFERENCE_BYTES * whole
        if self._coarse % self._fine == 0:
            parts = itertools.chain.from_iterable(self._parts_of(scope, block) for block in ids)
            return tuple(itertools.islice(parts, whole))
        return self._across(scope, list(ids), whole)

    def _parts_of(self, scope: int, block: int) -> tuple[int, ...]:
        """Return the names of the parts of a block of the trace."""
        found = self._parts.get((scope, block))
        if found is None:
            count = self._coarse // self._fine
            found = tuple([mix(scope ^ ((block << 16) + part)) for part in range(count)])
            self._parts[scope, block] = found
            self.bytes += _NAME_BYTES * (count + 2)
        return found

    def _across(self, scope: int, ids: Sequence[int], whole: int) -> tuple[int, ...]:
        """Name blocks of the engine that touch several of the trace, each by all of them."""
        coarse, fine = self._coarse, self._fine
        found = []
        for at in range(whole):
            first, last = at * fine // coarse, ((at + 1) * fine - 1) // coarse
            name = scope ^ at
            for block in ids[first : last + 1]:
                name = mix(name ^ block)
            found.append(self._known.setdefault(name, name))
        self.bytes += _NAME_BYTES * 2 * (len(self._known) - self._counted)
        self._counted = len(self._known)
        return tuple(found)


def begun_at(arrivals: Sequence[Arrival], share: float) -> list[Arrival]:
    """Return a trace that begins at so much of its span (0 to 1), what was before that behind its end.

    Between its last request and its first there is its mean gap.
    """
    if len(arrivals) < 2:
        return list(arrivals)
    span_s = arrivals[-1].at_s * len(arrivals) / (len(arrivals) - 1)
    begin_s = share * span_s
    first = bisect.bisect_left(arrivals, begin_s, key=_at)
    moved = [
        *(msgspec.structs.replace(one, at_s=one.at_s - begin_s) for one in arrivals[first:]),
        *(
            msgspec.structs.replace(one, at_s=one.at_s - begin_s + span_s)
            for one in arrivals[:first]
        ),
    ]
    # Rounding must not put what is moved before what it comes after.
    return sorted(moved, key=_at)


def stretch(arrivals: Sequence[Arrival], factor: float) -> list[Arrival]:
    """Return the requests with all gaps divided by `factor`: so many times the rate, bursts shortened with it."""
    if not 0.0 < factor < math.inf:
        raise WorkloadError(f"a rate is multiplied by a number above 0, got {factor}")
    return [msgspec.structs.replace(one, at_s=one.at_s / factor) for one in arrivals]


def overlay(
    arrivals: Sequence[Arrival], copies: int, rng: random.Random, *, span_s: float | None = None
) -> Iterator[Arrival]:
    """Yield so many copies laid over each other, each turned round by a drawn time and sharing nothing.

    A copy that reaches the end of `span_s` (the trace's own span if None) goes on at its beginning, so the rate is the
    same all along. Copies are made as they are needed. Raises `WorkloadError` below one copy.
    """
    if copies < 1:
        raise WorkloadError(f"copies: needs at least 1, got {copies}")
    span = span_s if span_s is not None else max((one.at_s for one in arrivals), default=0.0)
    shifts = [0.0, *(rng.random() * span for _ in range(1, copies))]
    return heapq.merge(
        *(_turned(arrivals, shift, span, copy) for copy, shift in enumerate(shifts)), key=_at
    )


def _turned(arrivals: Sequence[Arrival], shift: float, span: float, copy: int) -> Iterator[Arrival]:
    salt = mix(copy) if copy else 0
    first = bisect.bisect_right(arrivals, span - shift, key=_at)
    last_s = 0.0
    for place, one in enumerate((*arrivals[first:], *arrivals[:first])):
        # Rounding must not put the end of the trace after its own beginning.
        last_s = max(last_s, one.at_s + shift - (span if place < len(arrivals) - first else 0.0))
        yield Arrival(
            at_s=last_s,
            session=f"{one.session}#{copy}" if copy else one.session,
            input_tokens=one.input_tokens,
            output_tokens=one.output_tokens,
            hashes=tuple([name ^ salt for name in one.hashes]),
            after=tuple([name ^ salt for name in one.after]),
            label=one.label,
        )


def join(parts: Sequence[Sequence[Arrival]], gap_s: float = 0.0) -> list[Arrival]:
    """Return traces one after the other, `gap_s` between the last request of one and the first of the next."""
    made: list[Arrival] = []
    start_s = 0.0
    for part in parts:
        made.extend(msgspec.structs.replace(one, at_s=one.at_s + start_s) for one in part)
        start_s = (made[-1].at_s if made else 0.0) + gap_s
    return made


class Diurnal(msgspec.Struct, frozen=True, kw_only=True):
    """The rate over a day relative to its mean: a raised cosine from `low` to `high` with a period in seconds."""

    period_s: float = 86_400.0
    low: float = 0.4
    high: float = 1.6


def diurnal(arrivals: Sequence[Arrival], shape: Diurnal) -> list[Arrival]:
    """Return the requests with times bent so that their rate follows the shape; order and number stay.

    Time is mapped through the inverse of the shape's integral, found by bisection on a table of a thousand steps a
    period, so bursts stay bursts.
    """
    if not 0.0 < shape.low <= shape.high or shape.period_s <= 0.0:
        raise WorkloadError(f"a diurnal shape needs 0 < low <= high and a period, got {shape}")
    if not arrivals:
        return []
    span = arrivals[-1].at_s
    steps = max(1000, math.ceil(1000 * span / shape.period_s))
    at = [span * step / steps for step in range(steps + 1)]
    done = [0.0]
    for left, right in itertools.pairwise(at):
        done.append(done[-1] + (right - left) * _rate(shape, (left + right) / 2.0))
    total = done[-1]
    return [
        msgspec.structs.replace(
            one, at_s=_inverse(done, at, one.at_s / span * total) if span else 0.0
        )
        for one in arrivals
    ]


def _rate(shape: Diurnal, at_s: float) -> float:
    phase = 2.0 * math.pi * at_s / shape.period_s
    return shape.low + (shape.high - shape.low) * 0.5 * (1.0 - math.cos(phase))


def _inverse(done: Sequence[float], at: Sequence[float], value: float) -> float:
    place = min(max(1, bisect.bisect_left(done, value)), len(done) - 1)
    low, high = done[place - 1], done[place]
    share = (value - low) / (high - low) if high > low else 0.0
    return at[place - 1] + (at[place] - at[place - 1]) * share


class Sessions(msgspec.Struct, frozen=True, kw_only=True):
    """Made-up sessions that share prefixes. Tokens are means; lengths are drawn log-normal with `spread` (sigma).

    Of each prompt the first `system_tokens` are shared by all, the next `group_tokens` by a group of sessions, and a
    turn repeats the whole prompt of the turn before with its answer. `rate_per_s`: turns per second, Poisson.
    """

    rate_per_s: float
    duration_s: float
    turns: int = 8
    groups: int = 16
    system_tokens: int = 512
    group_tokens: int = 1024
    turn_tokens: int = 256
    output_tokens: int = 128
    spread: float = 0.5
    think_s: float = 10.0


def sessions(shape: Sessions, rng: random.Random, *, block_tokens: int) -> list[Arrival]:
    """Return the requests of made-up sessions in order of time."""
    if shape.rate_per_s <= 0.0 or shape.duration_s <= 0.0 or shape.turns < 1 or shape.groups < 1:
        raise WorkloadError("sessions need a rate, a duration, turns and groups above 0")
    made: list[Arrival] = []
    at_s, number = 0.0, 0
    while True:
        at_s += rng.expovariate(shape.rate_per_s / shape.turns)
        if at_s >= shape.duration_s:
            break
        made.extend(_session(shape, rng, at_s, number, block_tokens))
        number += 1
    made = [one for one in made if one.at_s < shape.duration_s]
    made.sort(key=_at)
    return made


def _session(
    shape: Sessions, rng: random.Random, at_s: float, number: int, block_tokens: int
) -> Iterator[Arrival]:
    group = rng.randrange(shape.groups)
    shared = shape.system_tokens // block_tokens
    grouped = (shape.system_tokens + shape.group_tokens) // block_tokens
    of_group, own = mix((1 << 48) + group), mix((2 << 48) + number)
    length = shape.system_tokens + shape.group_tokens
    for turn in range(shape.turns):
        length += _drawn(rng, shape.turn_tokens, shape.spread)
        output = _drawn(rng, shape.output_tokens, shape.spread)
        whole = length // block_tokens
        names = [mix(at) for at in range(min(shared, whole))]
        names += [mix(of_group ^ at) for at in range(shared, min(grouped, whole))]
        names += [mix(own ^ at) for at in range(grouped, whole)]
        yield Arrival(
            at_s=at_s,
            session=f"s{number}",
            input_tokens=length,
            output_tokens=output,
            hashes=tuple(names),
            label="first" if turn == 0 else "turn",
        )
        length += output
        at_s += rng.expovariate(1.0 / shape.think_s) if shape.think_s > 0.0 else 0.0


def _drawn(rng: random.Random, mean: float, spread: float) -> int:
    """Return a log-normal length with this mean."""
    return max(1, round(mean * math.exp(rng.gauss(0.0, spread) - spread * spread / 2.0)))


def _at(one: Arrival) -> float:
    return one.at_s
