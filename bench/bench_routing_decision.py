"""What a routing decision costs in fleets of growing size, with a million blocks in the prefix index.

    python bench/bench_routing_decision.py [REPLICAS ...]

Timed: the lookup in the prefix index, the fleet view and the policy, with the decision's candidates as the ledger keeps
them; that is what a live gateway does for a request, beside counting it. Prompts of 24 blocks, of which a replica holds
a part, as conversations do; loads differ between replicas. Plain: a loop in Python over the same replicas that adds up
the same terms from plain numbers and takes the least, in the same run and interleaved with ours. Times are CPU time of
the thread, so that whoever else uses the machine is not counted as ours.
"""

import gc
import random
import resource
import sys
import time

import numpy as np

from trimtab.core.cost import CostModel
from trimtab.core.decision import RouteRequest, with_holdings
from trimtab.core.prefix import PrefixIndex
from trimtab.core.types import ReplicaState, Role
from trimtab.policies.loadstate import LoadState
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
            self.index.record(id_, prompt, 0.0)
            self.index.finished(id_, prompt)
        self.policy = PrefixAffine(cost=COST)

    def decide(self, number: int, blocks: tuple[int, ...]) -> str | None:
        """Decide as a live gateway does."""
        size = PROMPT_BLOCKS * BLOCK_TOKENS
        view = self.load.view(0.0, sequence=number)
        holdings = self.index.held_columns(blocks, size, size)
        request = RouteRequest(
            request_id=str(number), prompt_tokens=size, output_tokens_expected=128, session="s"
        )
        return self.policy.decide(view, with_holdings(request, holdings), 0.5).replica

    def plain(self, held: list[int], rows: list[tuple[float, float, float, float]]) -> int:
        """Decide by a loop over numbers: no bound, no ties, no record of why."""
        best, least = 0, float("inf")
        size = PROMPT_BLOCKS * BLOCK_TOKENS
        for at, (prefill, running, waiting, decode) in enumerate(rows):
            wait = prefill * 0.2
            if running + waiting >= SLOTS:
                wait += (running + waiting - SLOTS + 1) * decode / (running + waiting) * 2.9
            batch = min(running + 1.0, SLOTS)
            score = wait + 5.0 + 0.2 * (size - held[at]) + 128.0 * (15.0 + batch)
            if score < least:
                best, least = at, score
        return best


def times(rig: Rig) -> tuple[list[float], list[float]]:
    """Return the microseconds of our decisions and of plain ones."""
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
    ours, plain = [], []
    for number in range(DECISIONS):
        blocks = rig.rng.choice(rig.prompts[len(rig.prompts) // 2 :])
        if number % 3 == 0:
            # As a request that came and went since the last decision does.
            rig.load.admitted("n", rig.rng.choice(rig.ids), prefill_tokens=9, decode_tokens=9)
            rig.load.finished("n")
        started_s = time.thread_time()
        rig.decide(number, blocks)
        ours.append((time.thread_time() - started_s) * 1e6)
        if number % 10 == 0:
            started_s = time.thread_time()
            rig.plain(held, rows)
            plain.append((time.thread_time() - started_s) * 1e6)
    return ours[100:], plain


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
        ours, plain = times(rig)
        p50, p99 = np.percentile(ours, (50, 99))
        loop = float(np.percentile(plain, 50))
        print(
            f"{replicas} replicas, {rig.index.stats().blocks:,} blocks: p50 {p50:.0f} us, p99 {p99:.0f} us; "
            f"plain loop p50 {loop:.0f} us, ratio {p50 / loop:.2f}; index and fleet {grown:.0f} MiB",
            flush=True,
        )
        del rig
        gc.unfreeze()


if __name__ == "__main__":
    main()
