"""Which replicas are left out because they fail, for how long, and how they come back.

    healthy --(consecutive failures, or too large a share of the window)--> ejected
    ejected --(its time is over)--> half open: a few trials at once, no more
    half open --(enough trials ended well)--> healthy
    half open --(a trial failed)--> ejected, for twice as long

Never are all left out: at most a share of the replicas that could serve, and where only ejected ones are left they
serve all the same. Whether a request failed because of the replica is said by the caller: a client that left or
asked for nonsense says nothing about it. Times are seconds of a clock that never goes back.

Failure modes: a fleet that fails as a whole (its model is broken) is not helped by leaving out replicas, which is why
there is the bound; a request that kills whatever serves it can eject one replica after another up to the bound.

Source of the states: the outlier detection of Envoy (consecutive failures, growing ejection time, largest share).
"""

from collections import deque
from collections.abc import Iterable
from enum import StrEnum
from typing import assert_never

import msgspec

from trimtab.core.types import Health, HealthReason


class Outcome(StrEnum):
    """What a request that was sent to a replica says about it."""

    OK = "ok"
    FAILED = "failed"
    NEUTRAL = "neutral"


class OutlierRules(msgspec.Struct, frozen=True, kw_only=True):
    """When a replica is left out.

    `ejection_s` doubles with each ejection up to `ejection_s_max`, and starts anew after as long in health. A trial
    that has not ended after `trial_wait_s` (a long stream) does not keep the next one waiting.
    """

    consecutive: int = 5
    window: int = 50
    window_min: int = 20
    failed_share: float = 0.5
    ejection_s: float = 10.0
    ejection_s_max: float = 300.0
    ejected_share_max: float = 0.5
    trials_at_once: int = 1
    trials_to_pass: int = 3
    trial_wait_s: float = 30.0

    def __post_init__(self) -> None:
        """Refuse rules that contradict themselves; raises ValueError."""
        counts = (self.consecutive, self.window_min, self.trials_at_once, self.trials_to_pass)
        if min(counts) < 1 or self.window < self.window_min:
            raise ValueError("outlier rules: counts are at least 1, window at least window_min")
        if not 0.0 < self.failed_share <= 1.0 or not 0.0 <= self.ejected_share_max <= 1.0:
            raise ValueError("outlier rules: shares lie in [0, 1], failed_share above 0")
        if not 0.0 < self.ejection_s <= self.ejection_s_max:
            raise ValueError("outlier rules: 0 < ejection_s <= ejection_s_max")
        if self.trial_wait_s <= 0.0:
            raise ValueError("outlier rules: trial_wait_s is above 0")


class HealthChange(msgspec.Struct, frozen=True, kw_only=True):
    """A replica's standing changed; `until_s` is set where it is ejected."""

    replica: str
    health: Health
    reason: HealthReason
    at_s: float
    until_s: float | None = None
    ejections: int = 0


class _Replica:
    """What is remembered of one replica."""

    __slots__ = (
        "ejections",
        "failures",
        "health",
        "healthy_since_s",
        "in_row",
        "in_trial",
        "passed",
        "recent",
        "trial_at_s",
        "until_s",
    )

    def __init__(self, window: int) -> None:
        self.health = Health.HEALTHY
        self.recent: deque[bool] = deque(maxlen=window)
        self.failures = 0
        self.in_row = 0
        self.ejections = 0
        self.until_s = 0.0
        self.healthy_since_s = 0.0
        self.trial_at_s = 0.0
        self.in_trial = 0
        self.passed = 0

    def count(self, failed: bool) -> None:
        if len(self.recent) == self.recent.maxlen and self.recent[0]:
            self.failures -= 1
        self.recent.append(failed)
        self.failures += failed
        self.in_row = self.in_row + 1 if failed else 0

    def forget_window(self) -> None:
        self.recent.clear()
        self.failures = self.in_row = self.in_trial = self.passed = 0


class Outliers:
    """The standing of every replica. Feed it `sent` and `saw`; ask `left_out` before routing."""

    def __init__(self, rules: OutlierRules | None = None) -> None:
        """Take the rules; all replicas are healthy until something is seen of them."""
        self.rules = rules or OutlierRules()
        self._replicas: dict[str, _Replica] = {}
        self._troubled: set[str] = set()

    @property
    def quiet(self) -> bool:
        """Whether every replica is healthy, so that nothing has to be asked before a decision."""
        return not self._troubled

    def health(self, replica: str) -> Health:
        """Return where a replica stands; one that was never seen is healthy."""
        found = self._replicas.get(replica)
        return Health.HEALTHY if found is None else found.health

    def sent(self, replica: str, now_s: float) -> None:
        """Note that a request is being sent to a replica; on a half-open one it is a trial."""
        found = self._replicas.get(replica)
        if found is not None and found.health is Health.HALF_OPEN:
            found.in_trial += 1
            found.trial_at_s = now_s

    def saw(
        self, replica: str, outcome: Outcome, now_s: float, *, could_serve: Iterable[str]
    ) -> HealthChange | None:
        """Take in how a request ended; return the change of standing that follows, if any.

        `could_serve`: the replicas that are there and started, this one and ejected ones included.
        """
        found = self._replicas.get(replica)
        if found is None:
            found = self._replicas[replica] = _Replica(self.rules.window)
        match found.health:
            case Health.HEALTHY:
                return self._saw_healthy(replica, found, outcome, now_s, could_serve)
            case Health.HALF_OPEN:
                return self._saw_trial(replica, found, outcome, now_s)
            case Health.EJECTED:
                # Sent before it was left out, or because no other was there: its time goes on.
                return None
            case _:
                assert_never(found.health)

    def tick(self, now_s: float) -> tuple[HealthChange, ...]:
        """Open the way to trials for replicas whose time is over; return what changed."""
        due = [
            replica
            for replica in sorted(self._troubled)
            if self._replicas[replica].health is Health.EJECTED
            and self._replicas[replica].until_s <= now_s
        ]
        for replica in due:
            found = self._replicas[replica]
            found.forget_window()
            found.health = Health.HALF_OPEN
        return tuple(
            HealthChange(
                replica=replica,
                health=Health.HALF_OPEN,
                reason=HealthReason.TIME_IS_OVER,
                at_s=now_s,
                ejections=self._replicas[replica].ejections,
            )
            for replica in due
        )

    def left_out(self, could_serve: Iterable[str], now_s: float) -> frozenset[str]:
        """Return the replicas that get no request now: ejected, or half open with their trials under way.

        Where that would be all of them it is none: a replica in doubt is better than no answer.
        """
        if not self._troubled:
            return frozenset()
        all_of_them = frozenset(could_serve)
        out = frozenset(
            replica for replica in self._troubled & all_of_them if self._is_out(replica, now_s)
        )
        return frozenset() if out == all_of_them else out

    def forget(self, replica: str, now_s: float) -> HealthChange | None:
        """Start anew with a replica that restarted or left; return the change if it had been left out."""
        found = self._replicas.pop(replica, None)
        self._troubled.discard(replica)
        if found is None or found.health is Health.HEALTHY:
            return None
        return HealthChange(
            replica=replica, health=Health.HEALTHY, reason=HealthReason.CAME_BACK, at_s=now_s
        )

    def _is_out(self, replica: str, now_s: float) -> bool:
        found = self._replicas[replica]
        if found.health is Health.EJECTED:
            return True
        is_full = found.in_trial >= self.rules.trials_at_once
        return is_full and now_s - found.trial_at_s < self.rules.trial_wait_s

    def _saw_healthy(
        self,
        replica: str,
        found: _Replica,
        outcome: Outcome,
        now_s: float,
        could_serve: Iterable[str],
    ) -> HealthChange | None:
        if outcome is Outcome.NEUTRAL:
            return None
        found.count(outcome is Outcome.FAILED)
        reason = self._reason(found)
        if reason is None or not self._may_eject(could_serve):
            return None
        if now_s - found.healthy_since_s >= self.rules.ejection_s_max:
            found.ejections = 0
        return self._eject(replica, found, reason, now_s)

    def _saw_trial(
        self, replica: str, found: _Replica, outcome: Outcome, now_s: float
    ) -> HealthChange | None:
        # A request that was sent before the ejection may end now: it counts, but was no trial.
        found.in_trial = max(0, found.in_trial - 1)
        match outcome:
            case Outcome.NEUTRAL:
                return None
            case Outcome.FAILED:
                return self._eject(replica, found, HealthReason.TRIAL_FAILED, now_s)
            case Outcome.OK:
                found.passed += 1
            case _:
                assert_never(outcome)
        if found.passed < self.rules.trials_to_pass:
            return None
        found.forget_window()
        found.health = Health.HEALTHY
        found.healthy_since_s = now_s
        self._troubled.discard(replica)
        return HealthChange(
            replica=replica,
            health=Health.HEALTHY,
            reason=HealthReason.TRIALS_PASSED,
            at_s=now_s,
            ejections=found.ejections,
        )

    def _reason(self, found: _Replica) -> HealthReason | None:
        rules = self.rules
        if found.in_row >= rules.consecutive:
            return HealthReason.CONSECUTIVE_FAILURES
        seen = len(found.recent)
        if seen >= rules.window_min and found.failures >= rules.failed_share * seen:
            return HealthReason.FAILURE_SHARE
        return None

    def _may_eject(self, could_serve: Iterable[str]) -> bool:
        """Whether one more may be left out: one always may where another is left, more up to the share."""
        all_of_them = frozenset(could_serve)
        out = len(self._troubled & all_of_them)
        most = min(
            len(all_of_them) - 1, max(1, int(self.rules.ejected_share_max * len(all_of_them)))
        )
        return out < most

    def _eject(
        self, replica: str, found: _Replica, reason: HealthReason, now_s: float
    ) -> HealthChange:
        rules = self.rules
        found.forget_window()
        found.health = Health.EJECTED
        length_s = min(rules.ejection_s * 2.0 ** min(found.ejections, 30), rules.ejection_s_max)
        found.until_s = now_s + length_s
        found.ejections += 1
        self._troubled.add(replica)
        return HealthChange(
            replica=replica,
            health=Health.EJECTED,
            reason=reason,
            at_s=now_s,
            until_s=found.until_s,
            ejections=found.ejections,
        )
