"""A lever record as a person writes it, proven on request records: for cases that were seen in public."""

import hashlib
from collections.abc import Callable

import msgspec
from control_kit import Deciding
from events_kit import REVISION
from rollout_kit import EXTRAS, served

from trimtab.core.cuts import cuts_of
from trimtab.core.events import CutsKept, GatesEvaluated, QualityScored, RolloutMoved
from trimtab.core.gate import GateResult
from trimtab.core.lever import LeverRecord
from trimtab.core.record import RequestRecord
from trimtab.core.revision import Model
from trimtab.core.traffic import expose, hashed_place
from trimtab.core.types import Arm, RolloutState, Verdict
from trimtab.levers.catalog import routing_policy_of
from trimtab.rollout.quality import revision_of
from trimtab.rollout.score_file import read_scores
from trimtab.rollout.short_record import Known, complete, parse_record

SESSIONS = 400

RECORD = """
name = "{name}"
technique = "{technique}"
owner = "ada"
premise = "decode is bound by memory bandwidth at a batch of 4"
condition = "running streams"
failure_modes = ["some outputs change"]
{more}

[revision]
{revision}

[bottleneck]
phase = "decode"
resource = "memory_bandwidth"
diagnosis = "dg-1"

[[moves]]
budget = "{pays}"
spends = true
because = "it has to come from somewhere"

[expected.{metric}]
ratio = 0.7
low = 0.5
high = 0.9
because = "fewer bytes for a token"

[[triggers]]
signal = "net_tpot_ratio"
off_at = 1.3
on_at = 1.1
off_when_above = true
because = "streams got slower"

[ramp]
shares = {shares}
peak_cycle = "{cycle}"
block = "6s"
edge = "1s"
warm_up = "{warm_up}"
{gates}
"""

QUALITY_GATE = """
[[gates]]
metric = "quality_loss"
question = "{question}"
margin = {margin}
during = ["canary", "ramping", "proving"]
"""

Answer = Callable[[RequestRecord], RequestRecord]
"""From a request that met an arm to the same request, answered."""


def speculation(**changes: str) -> str:
    """A record that speculates."""
    return written(
        technique="speculation",
        revision='speculation = { method = "ngram_simple" }',
        pays="compute",
        **changes,
    )


def kv_at_eight_bits(*, question: str = "veto", margin: float = 0.02, **changes: str) -> str:
    """A record that halves the KV cache's precision, with a gate on scored quality."""
    return written(
        technique="quantization",
        revision='kv_type = "q8_0"',
        pays="quality",
        more='quality_gate = "scored items, by input tokens"\n',
        gates=QUALITY_GATE.format(question=question, margin=margin),
        **changes,
    )


def routing(policy: str) -> str:
    """A record that decides by another policy."""
    text = written(technique="prefix_caching", revision="chunk_tokens = 64", pays="memory")
    text = text.replace("[revision]\nchunk_tokens = 64\n", "")
    return text.replace('owner = "ada"', f'owner = "ada"\npolicy = "{policy}"')


def other_weights(*keep: str, **changes: str) -> str:
    """A record that puts another artifact in place, of which some weights must not have been lowered."""
    rules = ", ".join(f'"{rule}"' for rule in keep)
    return written(
        technique="quantization",
        revision=f'model = "four-bit"\nkeep = [{rules}]',
        pays="quality",
        more='quality_gate = "scored items"\n',
        **changes,
    )


def held(candidate: dict[str, float], baseline: dict[str, float]) -> Known:
    """A fleet that finds the artifact, and reads how many bits a weight both have."""
    found = Model(path="four-bit", sha256="4" * 64, name="four-bit")
    return Known(
        find_model=lambda path: found,
        weights_of=lambda path: candidate if path == "four-bit" else baseline,
    )


def written(**changes: str) -> str:
    """A record with some parts of its own."""
    parts = {
        "name": "the-lever",
        "more": "",
        "metric": "tpot_ms",
        "shares": "[0.5]",
        "cycle": "24s",
        "warm_up": "0s",
        "gates": "",
    }
    return RECORD.format(**{**parts, **changes})


class Case(Deciding):
    """One lever on two replicas; requests are answered as the case says, by the second."""

    def __init__(self, text: str, known: Known | None = None) -> None:
        super().__init__()
        self.extras = EXTRAS
        self.controller._extras = lambda record, replicas: self.extras
        self.record: LeverRecord = complete(
            parse_record(text, source="lever.toml"),
            baseline=REVISION,
            now_s=self.clock.wall_s(),
            known=known,
        )
        self.asked = 0

    async def start(self) -> "Case":
        """Expose its first slice."""
        event_id = self.controller.propose(self.record, cause_id=None)
        await self.controller.start(self.record, routing_policy_of(self.record), cause_id=event_id)
        return self

    @property
    def state(self) -> RolloutState:
        """Where the rollout is."""
        assert self.controller.proof is not None
        return self.controller.proof.rollout.state

    @property
    def results(self) -> tuple[GateResult, ...]:
        """The answers of the last look."""
        looks = [e for e in self.events("gates_evaluated") if isinstance(e, GatesEvaluated)]
        return looks[-1].results if looks else ()

    def result(self, gate: str) -> GateResult:
        """The last answer of the gate whose name begins so."""
        return next(each for each in self.results if each.gate.startswith(gate))

    @property
    def moves(self) -> list[RolloutState]:
        """The states it went through."""
        return [e.after for e in self.events("rollout_moved") if isinstance(e, RolloutMoved)]

    @property
    def refused(self) -> dict[str, str]:
        """The cuts that left it, with the reason."""
        kept = [e for e in self.events("cuts_kept") if isinstance(e, CutsKept)]
        return kept[-1].refused if kept else {}

    def score(self, text: str, *, floor: float | None = None, floor_runs: int = 0) -> None:
        """Give it the lines of an evaluation."""
        scores = read_scores(
            text,
            source="items.jsonl",
            evaluation=f"eval {len(self.extras.scores)}",
            revision=revision_of(self.record),
            floor=floor,
            floor_runs=floor_runs,
        )
        self.sink.append(QualityScored(lever=self.record.name, scores=scores), cause_id=None)
        self.extras = msgspec.structs.replace(self.extras, scores=(*self.extras.scores, scores))

    async def serve(
        self, seconds: int, answer: Answer, *, per_s: int = 20, until: RolloutState | None = None
    ) -> "Case":
        """Serve some seconds of traffic, or until a state is reached; one look a second."""
        for _ in range(seconds):
            if until is not None and self.state is until:
                break
            for number in range(per_s):
                self.controller.on_record(self._request(number / per_s, answer))
            self.clock.pass_s(1.0)
            await self.controller.tick()
        return self

    def _request(self, within_s: float, answer: Answer) -> RequestRecord:
        self.asked += 1
        number = self.asked
        session = f"s{scattered(number) * SESSIONS:.0f}"
        bare = served(None, Arm.BASELINE, number=number, at=self.clock.wall_s() + within_s)
        bare = msgspec.structs.replace(bare, request_id=f"q{number}", session=session)
        # Cuts that are known before serving do not depend on the arm.
        cuts = cuts_of(answer(bare))
        exposure = expose(
            self.actuator.plan,
            place=hashed_place(session, self.record.name),
            cuts=cuts,
            now_s=self.clock.mono_s() + within_s,
            replicas=("r0", "r1"),
            session=session,
        )
        met = msgspec.structs.replace(
            bare,
            arm=exposure.arm,
            lever=exposure.lever,
            slice=exposure.slice,
            block=exposure.block,
            replica=(exposure.allowed or exposure.preferred or ("r0",))[0],
        )
        return answer(met)


def scattered(number: int, salt: str = "") -> float:
    """A number in [0, 1) that looks like chance and is the same in every run."""
    return hashed_place(f"{number}", f"case {salt}")


def chance(record: RequestRecord, salt: str) -> float:
    """The same, drawn for a request."""
    return hashed_place(record.request_id, salt)


def spread(record: RequestRecord, salt: str = "") -> float:
    """A factor around 1 that differs from request to request."""
    digest = hashlib.blake2b(f"{record.request_id}{salt}".encode(), digest_size=2).digest()
    return 0.9 + 0.2 * int.from_bytes(digest) / 65_535


def is_candidate(record: RequestRecord) -> bool:
    """Whether a request met the candidate."""
    return record.arm is Arm.CANDIDATE


def counts(cut: str, n: int, baseline: int, candidate: int) -> str:
    """One line of an evaluation of which only counts are known."""
    return f'{{"cut": "{cut}", "n": {n}, "baseline_passed": {baseline}, "candidate_passed": {candidate}}}\n'


def pairs_line(n: int, losses: int, wins: int, *, both: int = 0, cut: str = "all") -> str:
    """One line of an evaluation whose items pair."""
    return (
        f'{{"cut": "{cut}", "n": {n}, "baseline_passed": {both + losses}, '
        f'"candidate_passed": {both + wins}, "losses": {losses}, "wins": {wins}}}\n'
    )


def verdict(case: Case, gate: str) -> tuple[Verdict, str]:
    """Verdict and reason of a gate's last answer."""
    found = case.result(gate)
    return found.verdict, found.reason
