"""What a routing decision costs in fleets of growing size, with a million blocks in the prefix index.

    python bench/bench_routing_decision.py [REPLICAS ...]

Timed, of a live gateway's router: `decision`, the lookup in the prefix index, the view of the fleet and the policy
`prefix_affine`; `route`, all of `Router.route`, which also keeps what was seen and counts the request on its replica;
and `after`, what a request costs later, when nobody waits for it: the index learns of it, its end is folded back and
its decision is explained for the ledger. Prompts of 24 blocks, of which a replica holds a part, as conversations do;
their hashes are made just before, as a gateway makes them. Loads differ between replicas. Plain: a loop in Python over
the same replicas that adds up the same terms from plain numbers and takes the least, interleaved with our decisions.
Times are CPU time of the thread, so that whoever else uses the machine is not counted as ours; what a neighbour on the
same core takes is. `loop` is one turn of an empty loop.
"""

import gc
import random
import resource
import sys
import time

import numpy as np

from trimtab.core.cost import CostModel
from trimtab.core.decision import RouteRequest, with_holdings
from trimtab.core.ports import RequestFacts
from trimtab.core.prefix import PrefixIndex
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import Constraint, ReplicaState, Role
from trimtab.policies.loadstate import LoadState
from trimtab.policies.router import RouteQuery, Router, explained
from trimtab.policies.routing import PrefixAffine

SIZES = (2, 16, 256, 1000, 4000)
BLOCKS = 1_000_000
PROMPT_BLOCKS = 24
BLOCK_TOKENS = 16
DECISIONS = 3_000
SLOTS = 8
COST = CostModel(
    prefill_base_ms=5.0,
    prefill_ms_per_token=0.2,
    step_base_ms=15.0,
    step_ms_per_stream=1.0,
    prefill_samples=0,
    step_samples=0,
    source="made up",
)
FACTS = RequestFacts(
    model=None,
    stream=True,
    wants_usage=True,
    temperature=0.0,
    max_tokens=None,
    constraint=Constraint.FREE,
    segments=(),
)
SIZE = PROMPT_BLOCKS * BLOCK_TOKENS


class Rig:
    """A fleet with work in flight and an index that is full."""

    def __init__(self, replicas: int) -> None:
        self.rng = random.Random(replicas)
        self.ids = [f"r{at:05d}" for at in range(replicas)]
        self.load, self.index = LoadState(), PrefixIndex(BLOCKS, BLOCK_TOKENS)
        for id_ in self.ids:
            self.load.set_replica(
                id=id_,
                url="http://x",
                role=Role.MIXED,
                revision="v",
                state=ReplicaState.READY,
                slots=SLOTS,
            )
        for number in range(replicas * 4):
            id_ = self.rng.choice(self.ids)
            prefill, decode = self.rng.randrange(4000), self.rng.randrange(300)
            self.load.admitted(f"f{number}", id_, prefill_tokens=prefill, decode_tokens=decode)
        self.index.meet(self.load.view(0.0).columns.ids)
        self.prompts: list[tuple[int, ...]] = []
        shared = tuple(self.rng.getrandbits(64) for _ in range(4))
        while self.index.stats().evictions == 0:
            own = (self.rng.getrandbits(64) for _ in range(PROMPT_BLOCKS - len(shared)))
            prompt = (*shared, *own)
            self.prompts.append(prompt)
            id_ = self.rng.choice(self.ids)
            self.index.record(id_, prompt)
            self.index.finished(id_, prompt)
        self.policy = PrefixAffine(cost=COST)

        self.router = Router(
            self.load,
            self.index,
            {"prefix_affine": self.policy},
            random.Random(1),
            plan=TrafficPlan(policy="prefix_affine"),
        )
        self.router.ratio.bytes_per_token = 1.0

    def prompt(self) -> tuple[int, ...]:
        """Return a prompt that was recorded not long ago, its hashes made anew."""
        known = self.prompts[self.rng.randrange(len(self.prompts) // 2, len(self.prompts))]
        return tuple(each ^ 1 ^ 1 for each in known)

    def decide(self, number: int, blocks: tuple[int, ...]) -> str | None:
        """Look everything up and decide, and no more."""
        view = self.load.glance(0.0, sequence=number)
        holdings = self.index.held_columns(blocks, SIZE, SIZE)
        request = RouteRequest(
            request_id="d", prompt_tokens=SIZE, output_tokens_expected=128, session="s"
        )
        with_holdings(request, holdings, explained=False)
        return self.policy.decide(view, request, 0.5).replica

    def serve(self, number: int, blocks: tuple[int, ...]) -> tuple[float, float]:
        """Route a request and let it end; return the microseconds of routing and of what comes after."""
        query = RouteQuery(
            request_id=f"q{number}",
            facts=FACTS,
            blocks=blocks,
            prompt_size=SIZE,
            session="s",
            label=None,
            repetition=None,
            now_s=0.0,
        )
        started_s = time.thread_time()
        routed = self.router.route(query)
        routed_s = time.thread_time()
        held = self.router.dispatched(routed)
        explained(routed)
        self.router.finished(routed, captured=held, delivered=held, output_tokens=None)
        ended_s = time.thread_time()
        return (routed_s - started_s) * 1e6, (ended_s - routed_s) * 1e6

    def plain(self, held: list[int], rows: list[tuple[float, float, float, float]]) -> int:
        """Decide by a loop over numbers: no bound, no ties, no record of why."""
        best, least = 0, float("inf")
        for at, (prefill, running, waiting, decode) in enumerate(rows):
            wait = prefill * 0.2
            if running + waiting >= SLOTS:
                wait += (running + waiting - SLOTS + 1) * decode / (running + waiting) * 2.9
            batch = min(running + 1.0, SLOTS)
            score = wait + 5.0 + 0.2 * (SIZE - held[at]) + 128.0 * (15.0 + batch)
            if score < least:
                best, least = at, score
        return best


def times(rig: Rig) -> dict[str, list[float]]:
    """Return the microseconds of decisions, of whole routings, of what comes after, and of plain loops."""
    columns = rig.load.view(0.0).columns
    rows = list(
        zip(
            columns.prefill.tolist(),
            columns.running.tolist(),
            columns.waiting.tolist(),
            columns.decode.tolist(),
            strict=True,
        )
    )
    held = [rig.rng.randrange(64) for _ in rig.ids]
    found: dict[str, list[float]] = {"decision": [], "route": [], "after": [], "plain": []}
    for number in range(DECISIONS):
        blocks = rig.prompt()
        if number % 3 == 0:
            # As a request that came and went since the last decision does.
            rig.load.admitted("n", rig.rng.choice(rig.ids), prefill_tokens=9, decode_tokens=9)
            rig.load.finished("n")
        started_s = time.thread_time()
        rig.decide(number, blocks)
        found["decision"].append((time.thread_time() - started_s) * 1e6)
        if number % 10 == 0:
            started_s = time.thread_time()
            rig.plain(held, rows)
            found["plain"].append((time.thread_time() - started_s) * 1e6)
    for number in range(DECISIONS):
        routed, after = rig.serve(number, rig.prompt())
        found["route"].append(routed)
        found["after"].append(after)
    return {name: each[len(each) // 30 :] for name, each in found.items()}


def loop_ns() -> float:
    """Return the nanoseconds of one turn of an empty loop: how fast this machine is just now."""
    started_s = time.thread_time()
    for _ in range(1_000_000):
        pass
    return (time.thread_time() - started_s) * 1e3


def mib() -> float:
    """Return the resident memory now, in MiB (Linux)."""
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * resource.getpagesize() / 2**20


def main() -> None:
    """Print a line for each size."""
    for replicas in [int(each) for each in sys.argv[1:]] or SIZES:
        gc.collect()
        before = mib()
        rig = Rig(replicas)
        grown = mib() - before
        gc.freeze()
        found = times(rig)
        said = ", ".join(
            f"{name} p50 {np.percentile(each, 50):.0f} p99 {np.percentile(each, 99):.0f}"
            for name, each in found.items()
        )
        print(
            f"{replicas} replicas, {rig.index.stats().blocks:,} blocks, microseconds: {said}; "
            f"index and fleet {grown:.0f} MiB; loop {loop_ns():.0f} ns",
            flush=True,
        )
        del rig
        gc.unfreeze()


if __name__ == "__main__":
    main()
