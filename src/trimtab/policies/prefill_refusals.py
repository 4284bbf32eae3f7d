"""Which prefill replicas are left out because they answer that they cannot serve: 429 or 5xx, again and again.

Law: one that says for how long (Retry-After) is left out so long, `PAUSE_MAX_S` at most. One that does not is left out
after `IN_A_ROW` such answers in a row, as a pair is whose hand-overs fail (`policies.pair_breaker`): for `PAUSE_S`,
then one prompt at a time goes as a probe, and each that is refused doubles the pause. A prompt that was computed ends
it and all that was counted. What a replica says of a request (another 4xx) counts as nothing.

Failure mode: one that refuses two times of three and never says for how long is never left out.
"""

from typing import Final

from trimtab.policies.pair_breaker import PAUSE_MAX_S, Failures, after_failure

TOO_MANY_REQUESTS: Final = 429


def is_unavailable(status: int) -> bool:
    """Say whether an answer speaks of the replica and not of the request."""
    return status == TOO_MANY_REQUESTS or status >= 500


class PrefillRefusals:
    """The prefill replicas that refused of late. Times are seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._of: dict[str, Failures] = {}

    def is_left_out(self, replica: str, now_s: float, *, computing: bool) -> bool:
        """Say whether nothing is to be asked of a replica now. `computing`: a prompt is under way there."""
        one = self._of.get(replica)
        return one is not None and one.is_open and (now_s < one.until_s or computing)

    def refused(self, replica: str, now_s: float, *, retry_after_s: float | None = None) -> None:
        """Take in one refusal. `retry_after_s`: what it said itself."""
        before = self._of.get(replica, Failures())
        if retry_after_s is None:
            self._of[replica] = after_failure(before, now_s)
            return
        pause_s = min(PAUSE_MAX_S, retry_after_s)
        # Of several that were under way the one that asks for the longest wait is heard.
        until_s = max(before.until_s, now_s + pause_s)
        self._of[replica] = Failures(count=before.count + 1, pause_s=pause_s, until_s=until_s)

    def computed(self, replica: str) -> None:
        """Note that a replica computed a prompt."""
        self._of.pop(replica, None)

    def forget(self, replica: str) -> None:
        """Drop a replica that left."""
        self._of.pop(replica, None)
