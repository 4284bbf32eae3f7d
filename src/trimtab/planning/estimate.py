"""What a replica is expected to do under a load: step times of its devices, and everything a server does with them.

With b streams on a rank, p what one prompt's prefill adds to the steps it shares, s(b) a decode step, n output tokens:

    closed loop (streams start anew as they end)
        TPOT   s(b) + (b - 1) p / n              each stream sees the others' prompts once in its life
        TTFT   first + f x prefill + w (b - 1) p + queue
        queue  (clients - running) / running x life of a request, where the KV cache holds fewer than all
    open loop (r requests a second to a rank)
        TPOT   s(b) / (1 - r p), b = r x life    Little's law, iterated
        TTFT   first + f x prefill + r p p / (2 (1 - r p)) + half a step + queue
        queue  life / cap x u^(sqrt(2 (cap + 1)) - 1) / (1 - u), u the part of the most streams that run

`first`, which grows with the streams, `f` and `w` are the engine's (see `server_pace`). A pipeline's stages work on
different streams, so a stage's batch is b / stages and a prompt holds each stage up by p / stages. A step that verifies
k drafts computes 1 + k tokens a stream and yields (1 - a^(k+1)) / (1 - a) of them at acceptance a; the drafter's own
time is not counted.

Sources: Little, 1961; M/D/1 waiting, Pollaczek and Khinchine; M/M/c waiting, Sakasegawa, 1977. Fails where lengths vary
widely (means hide the tail), where a server preempts streams, and for bursts of arrivals.
"""

import math
from typing import Final

import msgspec

from trimtab.core.layout import Demand, Expected, Layout, Span
from trimtab.planning.grid_times import CHUNK_TOKENS
from trimtab.planning.kernel_port import StepTimes
from trimtab.planning.server_pace import Pace

STREAMS_MAX: Final = 1024.0
_ROUNDS: Final = 40
_SETTLED: Final = 1e-4
_FULL: Final = 0.999


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What limits a replica: tokens of KV it holds, streams it runs, tokens of a prompt in one step."""

    kv_tokens: float
    streams_max: float = STREAMS_MAX
    chunk_tokens: int = CHUNK_TOKENS


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds that slower links than those of the tables add for each token of a step, and to each step."""

    step_ms: float = 0.0
    token_ms: float = 0.0


class Replica:
    """One replica of a layout: its step times, its server's pace and its bounds, asked under different loads."""

    def __init__(
        self,
        times: StepTimes,
        layout: Layout,
        pace: Pace,
        bounds: Bounds,
        extra: Extra | None = None,
    ) -> None:
        self._times = times
        self._layout = msgspec.structs.replace(layout, replicas=1)
        self._pace = pace
        self._bounds = bounds
        self._extra = extra or Extra()
        self._fullest: dict[Demand, Expected] = {}

    def expected(self, demand: Demand) -> Expected:
        """Return what to expect under the demand of one replica; without a load, that of one stream.

        Times are infinite where arrivals outrun the replica. Raises ValueError for lengths below 1.
        """
        if demand.input_tokens < 1 or demand.output_tokens < 1:
            raise ValueError("an estimate needs input and output tokens")
        if demand.rate_per_s is not None:
            return self._open(demand, demand.rate_per_s)
        return self._closed(demand, max(1.0, demand.concurrency or 1.0))

    def _closed(self, demand: Demand, clients: float) -> Expected:
        running = min(clients, self._cap(demand))
        load = self._load(demand, running)
        tpot = load.step_ms + max(0.0, load.rank_streams - 1.0) * load.prompt_ms / load.steps
        tpot /= load.tokens_per_step
        wait = self._pace.wait_share * max(0.0, load.rank_streams - 1.0) * load.prompt_ms
        prefill = self._pace.prefill_factor * load.prefill_ms
        first = self._first_ms(running) + prefill + wait
        life = first + (demand.output_tokens - 1) * tpot
        queue = max(0.0, clients - running) / running * life
        return self._said(
            demand,
            load,
            tpot=tpot,
            ttft=first + queue,
            queue=queue + wait,
            rate_per_s=1000.0 * running / life,
        )

    def _open(self, demand: Demand, rate_per_s: float) -> Expected:
        cap = self._cap(demand)
        most = self._full(demand, cap)
        most_per_s = most.output_tokens_per_s / demand.output_tokens
        used = rate_per_s / most_per_s
        if used >= _FULL:
            return msgspec.structs.replace(
                most,
                ttft_ms=Span(value=math.inf),
                queue_ms=math.inf,
                utilisation=used,
                notes=(*most.notes, f"arrivals outrun it: it serves {most_per_s:.3g} a second"),
            )
        rank_ms = rate_per_s / 1000.0 / self._layout.attention_dp
        running = 1.0
        for _ in range(_ROUNDS):
            load = self._load(demand, max(1.0, running))
            busy = min(_FULL, rank_ms * load.prompt_ms)
            tpot = load.step_ms / load.tokens_per_step / (1.0 - busy)
            pause = busy * load.prompt_ms / (2.0 * (1.0 - busy)) + load.step_ms / 2.0
            first = self._first_ms(running) + self._pace.prefill_factor * load.prefill_ms + pause
            life = first + (demand.output_tokens - 1) * tpot
            found = min(cap, rate_per_s * life / 1000.0)
            if abs(found - running) <= _SETTLED * max(1.0, running):
                break
            running = (running + found) / 2.0
        power = math.sqrt(2.0 * (cap + 1.0)) - 1.0
        queue = life / cap * used**power / (1.0 - used)
        said = self._said(
            demand, load, tpot=tpot, ttft=first + queue, queue=queue + pause, rate_per_s=rate_per_s
        )
        return msgspec.structs.replace(said, batch=running, utilisation=used)

    def _full(self, demand: Demand, cap: float) -> Expected:
        """Return what to expect with as many streams as run at most, whatever the rate."""
        alike = msgspec.structs.replace(demand, rate_per_s=None)
        if alike not in self._fullest:
            self._fullest[alike] = self._closed(demand, cap)
        return self._fullest[alike]

    def _first_ms(self, running: float) -> float:
        return self._pace.first_ms + self._pace.client_ms * running

    def _cap(self, demand: Demand) -> float:
        """Return how many streams run at once at most: their mean context over a life has to be held."""
        mean = demand.input_tokens + demand.output_tokens / 2.0
        held = self._bounds.kv_tokens / mean
        # each attention group has a scheduler of its own, and each stage a batch of its own
        most = self._bounds.streams_max * self._layout.pp * self._layout.attention_dp
        return max(1.0, min(held, most))

    def _load(self, demand: Demand, running: float) -> "_Load":
        layout = self._layout
        rank_streams = max(1.0, running / layout.attention_dp)
        batch = max(1.0, rank_streams / layout.pp)
        context = demand.input_tokens + demand.output_tokens // 2
        width = 1 + max(0, demand.draft_tokens)
        step = self._decode_ms(batch * width, max(1, context // width))
        host = self._pace.step_ms + self._pace.stream_ms * running
        cached = min(demand.input_tokens - 1, round(demand.input_tokens * demand.prefix_share))
        tokens_per_step = _tokens_per_step(demand)
        # no more attention groups have a prompt at once than there are streams
        busy = min(1.0, running / layout.attention_dp)
        return _Load(
            running=running,
            rank_streams=rank_streams,
            step_ms=step + host,
            device_ms=step,
            prompt_ms=self._prompt_ms(demand, batch, cached, busy) / layout.pp,
            prefill_ms=self._times.prefill_ms(demand.input_tokens, cached, busy_share=busy)
            + self._slower(demand.input_tokens - cached),
            steps=max(1.0, demand.output_tokens / tokens_per_step),
            tokens_per_step=tokens_per_step,
            step_tokens=batch * width,
            context=context,
        )

    def _decode_ms(self, batch: float, context: int) -> float:
        return self._times.decode_ms(batch, context) + self._slower(batch)

    def _prompt_ms(self, demand: Demand, batch: float, cached: int, busy: float) -> float:
        """Return what one prompt's prefill adds to the steps of the streams it shares them with."""
        fresh = demand.input_tokens - cached
        chunk = min(self._bounds.chunk_tokens, fresh)
        chunks = math.ceil(fresh / chunk)
        beside = self._times.beside_ms(
            chunk, demand.input_tokens, cached, max(1.0, batch - 1.0), busy_share=busy
        )
        return chunks * (beside + self._extra.token_ms * chunk)

    def _slower(self, tokens: float) -> float:
        return self._extra.step_ms + self._extra.token_ms * tokens

    def _said(
        self,
        demand: Demand,
        load: "_Load",
        *,
        tpot: float,
        ttft: float,
        queue: float,
        rate_per_s: float,
    ) -> Expected:
        collectives = self._times.communication_ms(load.step_tokens, load.context)
        slower = self._slower(load.step_tokens)
        share = None if collectives is None else (collectives + slower) / max(1e-9, load.step_ms)
        return Expected(
            layout=self._layout,
            batch=load.running,
            ttft_ms=Span(value=ttft),
            tpot_ms=Span(value=tpot),
            queue_ms=queue,
            prefill_ms=load.prefill_ms,
            step_ms=load.step_ms,
            output_tokens_per_s=rate_per_s * demand.output_tokens,
            communication_share=None if share is None else min(1.0, share),
            source=self._times.source,
            notes=self._times.notes,
        )


class _Load(msgspec.Struct, frozen=True, kw_only=True):
    """A replica with so many streams. `prompt_ms`: what one prompt adds to the steps of a rank's others.

    `step_tokens`: of a decode step of a rank and stage; `context`: in tokens, mean.
    """

    running: float
    rank_streams: float
    step_ms: float
    device_ms: float
    prompt_ms: float
    prefill_ms: float
    steps: float
    tokens_per_step: float
    step_tokens: float
    context: int


def _tokens_per_step(demand: Demand) -> float:
    """Return how many tokens a step yields for a stream (Leviathan et al., 2023, equation 1)."""
    if demand.draft_tokens < 1:
        return 1.0
    accepted = min(max(demand.draft_acceptance or 0.0, 0.0), 1.0)
    if accepted >= 1.0:
        return 1.0 + demand.draft_tokens
    return float((1.0 - accepted ** (demand.draft_tokens + 1)) / (1.0 - accepted))
