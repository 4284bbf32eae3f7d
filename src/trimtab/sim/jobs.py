"""What a simulated replica is told: what it can do, which requests it gets, and who hears of them."""

from collections.abc import Callable, Sequence

import msgspec

from trimtab.core.step_cost import StepCost
from trimtab.sim.drafts import DraftSpec


class HostSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A host of `cores` cores on which `replicas` replicas run with `threads` threads each.

    `contention`: by what share each further replica at work slows all, cores apart (`sim.hosts`). `unrest_prefill`,
    `unrest_decode`: how far the pace of each replica wanders by itself in steps with prompts and in those without, as
    a logarithm, and `unrest_s` how long it keeps (`sim.unrest`).
    """

    cores: int
    threads: int
    replicas: int = 1
    contention: float = 0.0
    unrest_prefill: float = 0.0
    unrest_decode: float = 0.0
    unrest_s: float = 10.0

    @property
    def is_restless(self) -> bool:
        """Whether any step's pace wanders."""
        return max(self.unrest_prefill, self.unrest_decode) > 0.0


class ReplicaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica can do. `kv_tokens`: all the KV it has; `budget_tokens`: most new tokens of one step.

    `streams_max`: most running requests. `block_tokens`: tokens of a KV block. `similarity`: share of a prompt from
    which on a slot is taken for its prefix, in a replica of `streams_max` slots; None: the replica has paged blocks.
    """

    cost: StepCost
    kv_tokens: int
    block_tokens: int = 16
    budget_tokens: int = 2048
    streams_max: int = 256
    similarity: float | None = None
    host: HostSpec | None = None
    drafts: DraftSpec | None = None

    def __post_init__(self) -> None:
        """Refuse sizes below 1."""
        for name in ("kv_tokens", "block_tokens", "budget_tokens", "streams_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.kv_tokens < self.block_tokens:
            raise ValueError(
                f"kv_tokens {self.kv_tokens} holds no block of {self.block_tokens} tokens"
            )


class Job(msgspec.Struct, kw_only=True):
    """A request on a replica, and what becomes of it. Times in seconds of virtual time; None has not happened.

    `hashes`: names of the prompt's full KV blocks. `tokens_per_step`: 1, or more where drafts are accepted.
    `drafted`: draft tokens verified in each step beside the stream's own. `told_cached`: cached tokens as they were
    measured, which a replica takes instead of finding them; their KV is held like the rest. `after`: names of the
    further full blocks that prompt and answer make together. `incoming`: its prompt's KV was computed elsewhere and has
    to come before it can go on. `hands_over`: it is a prompt for another replica, and its blocks stay until
    `Replica.handed_over`.
    """

    id: int
    input_tokens: int
    output_tokens: int
    hashes: Sequence[int] = ()
    tokens_per_step: float = 1.0
    drafted: float = 0.0
    label: str = ""
    incoming: bool = False
    hands_over: bool = False
    arrived_s: float = 0.0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    failed: str | None = None
    told_cached: int | None = None
    after: Sequence[int] = ()
    # What the replica keeps of it while it runs.
    prefill_left: int = 0
    prefilled: int = 0
    generated: int = 0
    private: int = 0
    named: int = 0
    joined: int = 0
    ends: int = 0
    context: float = 0.0

    def reused_of(self, prompt: int, found: int) -> int:
        """Return the tokens of a prompt that need not be computed: those found, or what was told of its first try.

        An engine computes at least the last token of a prompt.
        """
        if self.told_cached is not None:
            found = max(found, self.told_cached) if self.preemptions else self.told_cached
        return min(found, prompt - 1)


def _nobody(_: int) -> None:
    """Take no notice of steps."""


def _nobody_receives(_: float, __: Job) -> None:
    """Take no notice of a job that waits for KV."""


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """Who is told what happens to a job: its first token, and its end (finished, or failed with a reason).

    `stepped`: told how many steps all decoding streams made since it was told last. `has_room`: an incoming job has
    its blocks, so that its KV can be sent; its `cached_tokens` are there already.
    """

    first_token: Callable[[float, Job], None]
    ended: Callable[[float, Job], None]
    stepped: Callable[[int], None] = _nobody
    has_room: Callable[[float, Job], None] = _nobody_receives
