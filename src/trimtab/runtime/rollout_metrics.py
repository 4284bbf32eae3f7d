"""What rollouts do, as /metrics shows it: where every lever is, what its gates said last, what was told of them.

Names of levers are labels: a fleet has a handful. Levers that ended are dropped before the newest `LEVERS_MAX` grow.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trimtab.core.events import (
    AnyEvent,
    Frozen,
    GatesEvaluated,
    LeverProposed,
    RolloutMoved,
    TriggerMoved,
    VerificationDue,
)
from trimtab.core.state import State, answers_verification
from trimtab.core.types import RolloutState, Verdict

LEVERS_MAX: Final = 200
ENDED: Final = frozenset({RolloutState.ROLLED_BACK, RolloutState.EXPIRED})


class ShownLever(msgspec.Struct, kw_only=True):
    """A lever as /metrics shows it; `verdicts` counts the gates of its latest look."""

    state: RolloutState = RolloutState.PROPOSED
    share: float = 0.0
    verdicts: dict[Verdict, int] = {}
    fired: int = 0
    is_due: bool = False


class RolloutCollector(Collector):
    """Keeps what was heard of levers and makes series of it at each scrape."""

    def __init__(self) -> None:
        self._levers: dict[str, ShownLever] = {}
        self._moves: Counter[RolloutState] = Counter()
        self._frozen = False
        self.ledger_healthy: Callable[[], bool] = lambda: True
        self.told: Callable[[], Mapping[tuple[str, str], int]] = dict
        """Counts of what sinks were told, by sink and outcome."""

    def seed(self, state: State) -> None:
        """Begin with what the ledger says of levers, as a restart finds it."""
        self._frozen = state.frozen
        for name, status in state.levers.items():
            self._levers[name] = ShownLever(
                state=status.state,
                share=status.share,
                verdicts=dict(Counter(result.verdict for result in status.results)),
                is_due=status.verification is not None,
            )
        self._trim()

    def heard(self, event_id: str, event: AnyEvent) -> None:
        """Take in one event of a lever; any other is none of its business."""
        match event:
            case Frozen():
                self._frozen = event.frozen
            case LeverProposed():
                self._levers[event.record.name] = ShownLever()
                self._trim()
            case RolloutMoved():
                self._moves[event.after] += 1
                lever = self._lever(event.lever)
                lever.state, lever.share = event.after, event.share
                if answers_verification(event):
                    lever.is_due = False
            case GatesEvaluated():
                counts = Counter(result.verdict for result in event.results)
                self._lever(event.lever).verdicts = dict(counts)
            case TriggerMoved():
                self._lever(event.lever).fired += event.fired
            case VerificationDue():
                self._lever(event.lever).is_due = True
            case _:
                return

    def _lever(self, name: str) -> ShownLever:
        found = self._levers.get(name)
        if found is None:
            found = self._levers[name] = ShownLever()
            self._trim()
        return found

    def _trim(self) -> None:
        over = len(self._levers) - LEVERS_MAX
        if over <= 0:
            return
        oldest_ended = [name for name, lever in self._levers.items() if lever.state in ENDED]
        for name in oldest_ended[:over]:
            del self._levers[name]

    def collect(self) -> Iterator[Metric]:
        """Yield the series."""
        yield from self._levers_now()
        moves = CounterMetricFamily(
            "trimtab_rollout_moves", "Moves of rollouts by where they led.", labels=("state",)
        )
        for state in RolloutState:
            moves.add_metric((state.value,), self._moves[state])
        yield moves
        yield _flag("promotions_frozen", "Whether promotions are frozen.", self._frozen)
        yield _flag(
            "ledger_healthy", "Whether every event so far was written.", self.ledger_healthy()
        )
        told = CounterMetricFamily(
            "trimtab_verdicts_told",
            "Verdicts and moves told to sinks, by what came of it.",
            labels=("sink", "outcome"),
        )
        for labels, count in sorted(self.told().items()):
            told.add_metric(labels, count)
        yield told

    def _levers_now(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "trimtab_lever_state",
            "1 for the state that a lever's rollout is in.",
            labels=("lever", "state"),
        )
        share = GaugeMetricFamily(
            "trimtab_lever_share_ratio",
            "Part of its slice that meets a lever, 0 to 1.",
            labels=("lever",),
        )
        gates = GaugeMetricFamily(
            "trimtab_lever_gates",
            "Gates of a lever's latest look, by verdict.",
            labels=("lever", "verdict"),
        )
        fired = CounterMetricFamily(
            "trimtab_lever_triggers_fired", "Times a trigger of a lever fired.", labels=("lever",)
        )
        due = GaugeMetricFamily(
            "trimtab_lever_verification_due",
            "Whether a lever is to be verified again.",
            labels=("lever",),
        )
        for name, lever in sorted(self._levers.items()):
            state.add_metric((name, lever.state.value), 1.0)
            share.add_metric((name,), lever.share)
            for verdict in Verdict:
                gates.add_metric((name, verdict.value), lever.verdicts.get(verdict, 0))
            fired.add_metric((name,), lever.fired)
            due.add_metric((name,), float(lever.is_due))
        yield from (state, share, gates, fired, due)


def _flag(name: str, what: str, value: bool) -> Metric:
    family = GaugeMetricFamily(f"trimtab_{name}", what)
    family.add_metric((), float(value))
    return family
