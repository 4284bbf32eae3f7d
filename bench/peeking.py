"""Rollouts in synthetic time, looked at every minute, on traffic that is hard to judge: what `bench_peeking` counts.

What judges and moves is what runs live: the gates of a short record as it is completed, `rollout.look.Judge`,
`rollout.machine.advance`, and `core.traffic.expose` for who meets what. Only the requests are made up:
    latency = 400 ms * load * session * noise * tail * effect
with a load that wanders (log AR(1), spread 0.4, half an hour to forget), a session's own size (spread 0.3, ten requests
on average, in its arm for good), noise (spread 0.8), and one request of twenty longer by a Pareto factor of exponent
1.2, whose variance is infinite. One of two hundred requests fails, in both arms.
"""

import heapq
import math
import random
from collections.abc import Iterator

import msgspec

from trimtab.core.gate import GateResult, Question
from trimtab.core.lever import LeverRecord, RampPlan, StickyBy
from trimtab.core.record import RequestRecord, Tokens
from trimtab.core.revision import Model, Revision
from trimtab.core.traffic import CandidatePlan, Exposure, TrafficPlan, expose, hashed_place
from trimtab.core.types import Arm, ErrorClass, Verdict
from trimtab.rollout.answer import ALL_TRAFFIC, ArmExtras
from trimtab.rollout.gates import harmed_cut, spared
from trimtab.rollout.look import Judge
from trimtab.rollout.machine import RUNNING, Look, Rollout, advance, begin
from trimtab.rollout.short_record import complete, parse_record

RECORD = """
name = "peeked-at"
technique = "prefix_caching"
policy = "prefix_affine"
owner = "bench"
premise = "made up"
condition = "all traffic"
failure_modes = ["none: the traffic is made up"]

[bottleneck]
phase = "prefill"
resource = "compute"
diagnosis = "made up"

[[moves]]
budget = "memory"
spends = true
because = "made up"

[expected.ttft_ms]
ratio = 0.8
low = 0.7
high = 0.9
because = "made up"

[[triggers]]
signal = "load_over_bound"
off_at = 0.95
off_when_above = true
because = "made up"
"""
BASELINE = Revision(
    engine="llamacpp",
    engine_version="b1",
    model=Model(path="model.gguf", sha256="ab" * 32, name="small"),
)
EXTRAS = ArmExtras(memory_bytes_baseline=1e9, memory_bytes_candidate=1e9, outputs_n=20, floor_n=20)
LOOK_S = 60.0
SESSIONS_MIN, SESSIONS_PER_MINUTE = 24, 2.0
"""Sessions at a time: each asks about every two minutes, and there are some even where little is asked."""

RARE = "rare"


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What the lever does and how long it is watched. Ratios are candidate over baseline in TTFT.

    `cycle_windows`: windows of a peak cycle. A rollout that finds too little evidence ends after ten cycles, so three
    windows a cycle keep it going through 28.
    """

    name: str
    ratio: float = 1.0
    rare_ratio: float | None = None
    rare_share: float = 0.04
    windows: int = 28
    window_s: float = 1800.0
    per_minute: float = 12.0
    cycle_windows: float = 3.0


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """How one stream went. Windows count from the start; units and requests are of the first pass of the gain gate."""

    seed: int
    state: str
    reason: str
    share: float
    window: float
    looks: int
    stopped_by: str = ""
    gained_at_window: float | None = None
    gain_units: int = 0
    gain_requests: int = 0
    requests: int = 0
    rare_requests: int = 0


class Traffic:
    """Requests in order of arrival, without an arm yet."""

    def __init__(self, rng: random.Random, scenario: Scenario) -> None:
        self._rng, self._scenario = rng, scenario
        self._load = rng.gauss(0.0, 0.4)
        at_a_time = max(SESSIONS_MIN, int(SESSIONS_PER_MINUTE * scenario.per_minute))
        self._sessions = [self._session(n) for n in range(at_a_time)]
        self._made = at_a_time
        self.at_s = 0.0

    def _session(self, number: int) -> tuple[str, float, bool, float]:
        rng = self._rng
        name = f"s{number}"
        rare = rng.random() < self._scenario.rare_share
        return name, rng.gauss(0.0, 0.3), rare, hashed_place(name, f"peeked-at {rng.random()}")

    def next(self) -> tuple[str, float, bool, float]:
        """Move to the next request; return its session, place, whether it is rare, and its latency's factor."""
        rng = self._rng
        gap = rng.expovariate(self._scenario.per_minute / 60.0)
        self.at_s += gap
        kept = math.exp(-gap / 1800.0)
        self._load = kept * self._load + rng.gauss(0.0, 0.4 * math.sqrt(1.0 - kept * kept))
        at = rng.randrange(len(self._sessions))
        name, size, rare, place = self._sessions[at]
        if rng.random() < 0.1:
            self._sessions[at] = self._session(self._made)
            self._made += 1
        factor = math.exp(self._load + size + rng.gauss(0.0, 0.8))
        if rng.random() < 0.05:
            factor *= rng.paretovariate(1.2)
        return name, place, rare, factor

    @property
    def load(self) -> float:
        """The logarithm of the load now."""
        return self._load


def lever(scenario: Scenario) -> LeverRecord:
    """The record as `trimtab rollout propose` completes it, sticky by session, with the scenario's peak cycle."""
    record = complete(parse_record(RECORD, source="bench"), baseline=BASELINE, now_s=0.0)
    ramp: RampPlan = msgspec.structs.replace(
        record.ramp,
        peak_cycle_s=scenario.cycle_windows * scenario.window_s,
        sticky_by=StickyBy.SESSION,
    )
    return msgspec.structs.replace(record, ramp=ramp)


class Stream:
    """One rollout from its first slice to its end or the last window."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario, self.seed = scenario, seed
        self._rng = random.Random(f"{scenario.name} {seed}")
        self._traffic = Traffic(self._rng, scenario)
        self._record = lever(scenario)
        self._judge = Judge(self._record)
        ramp = self._record.ramp
        # The order of arms in a switchback is drawn from the time of the start: another one for each seed.
        self._start_s = float(1000 * seed)
        self.rollout: Rollout = begin(self._record, self._start_s)
        self._plan = CandidatePlan(
            lever=self._record.name,
            share=self.rollout.share,
            policy=self._record.policy,
            replicas=(),
            comparison=ramp.comparison,
            started_at_s=self._start_s,
            block_s=ramp.block_s,
            edge_s=ramp.edge_s,
            sticky_by=ramp.sticky_by,
        )
        self._running: list[tuple[float, int, RequestRecord]] = []
        self._made = self._rare = 0

    def run(self) -> Course:
        """Look every minute until the rollout ends."""
        gain: GateResult | None = None
        gained_s = 0.0
        stopped_by = ""
        elapsed_s, looks = 0.0, 0
        while (
            elapsed_s < self.scenario.windows * self.scenario.window_s
            and self.rollout.state in RUNNING
        ):
            elapsed_s += LOOK_S
            looks += 1
            results, verdict = self._look(elapsed_s)
            if gain is None:
                gain = next((one for one in results if _is_gain(one)), None)
                gained_s = elapsed_s
            failed = [one.gate for one in results if one.verdict is Verdict.FAIL]
            # A cut that is taken out counts as stopped: it was, for those who are in it. It moves nothing.
            stopped_by = stopped_by or (failed[0] if failed else "")
            if any(harmed_cut(self._record, one, results) is not None for one in results):
                verdict = spared(self._record, results)
            self._follow(Look(verdict=verdict, results=results), elapsed_s)
            if stopped_by:
                break
        return Course(
            seed=self.seed,
            state=self.rollout.state.value,
            reason=self.rollout.reason,
            share=self.rollout.share,
            window=elapsed_s / self.scenario.window_s,
            looks=looks,
            stopped_by=stopped_by,
            gained_at_window=None if gain is None else gained_s / self.scenario.window_s,
            gain_units=0 if gain is None else gain.n_units,
            gain_requests=0 if gain is None else gain.n_baseline + gain.n_candidate,
            requests=self._made,
            rare_requests=self._rare,
        )

    def _look(self, elapsed_s: float) -> tuple[tuple[GateResult, ...], Verdict]:
        while self._traffic.at_s < elapsed_s:
            self._serve()
        now_s = self._start_s + elapsed_s
        while self._running and self._running[0][0] <= now_s:
            self._judge.take(heapq.heappop(self._running)[2])
        return self._judge.look(self.rollout, self._plan, EXTRAS, now_s)

    def _follow(self, look: Look, elapsed_s: float) -> None:
        after = advance(self._record, self.rollout, look, self._start_s + elapsed_s)
        if after.share != self.rollout.share and after.state in RUNNING:
            self._plan = msgspec.structs.replace(self._plan, share=after.share)
        self.rollout = after

    def _serve(self) -> None:
        _, place, rare, factor = self._traffic.next()
        at_s = self._start_s + self._traffic.at_s
        met = expose(
            TrafficPlan(policy="round_robin", candidate=self._plan),
            place=place,
            cuts=(),
            now_s=at_s,
            replicas=("r0", "r1"),
        )
        self._made += 1
        self._rare += rare
        if met.block is None or met.lever is None:
            return
        one = self._request(met, at_s, rare=rare, factor=factor)
        heapq.heappush(self._running, (one.finished_at_s, self._made, one))

    def _request(self, met: Exposure, at_s: float, *, rare: bool, factor: float) -> RequestRecord:
        rng, scenario = self._rng, self.scenario
        ratio = scenario.ratio
        if rare and scenario.rare_ratio is not None:
            ratio = scenario.rare_ratio
        ttft_ms = 400.0 * factor * (ratio if met.arm is Arm.CANDIDATE else 1.0)
        tpot_ms = 25.0 * math.exp(rng.gauss(0.0, 0.2) + 0.3 * self._traffic.load)
        output = rng.randint(10, 120)
        e2e_ms = ttft_ms + output * tpot_ms
        failed = rng.random() < 0.005
        return RequestRecord(
            request_id=str(self._made),
            arrived_at_s=at_s,
            finished_at_s=at_s + e2e_ms / 1000.0,
            endpoint="/v1/chat/completions",
            stream=True,
            arm=met.arm,
            lever=met.lever,
            slice=met.slice,
            block=met.block,
            replica="r0",
            label=RARE if rare else "common",
            ttft_ms=ttft_ms,
            tpot_ms=tpot_ms,
            e2e_ms=e2e_ms,
            chunk_gap_ms_max=tpot_ms,
            tokens=Tokens(
                prompt=int(200 * rng.lognormvariate(1.0, 0.8)), output=output, delivered=0
            ),
            batch_at_admission=1 + int(4 * math.exp(self._traffic.load)),
            concurrency_at_admission=1 + int(8 * math.exp(self._traffic.load)),
            temperature=0.0 if rng.random() < 0.5 else 0.7,
            status=502 if failed else 200,
            error=ErrorClass.UPSTREAM_STATUS if failed else ErrorClass.NONE,
        )


def courses(scenario: Scenario, seeds: range) -> Iterator[Course]:
    """Run one stream per seed."""
    for seed in seeds:
        yield Stream(scenario, seed).run()


def _is_gain(result: GateResult) -> bool:
    shown = result.question is Question.GAIN and result.verdict is Verdict.PASS
    return shown and result.cut == ALL_TRAFFIC
