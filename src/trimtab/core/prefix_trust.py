"""Whether router and engine mean the same by a prefix key: promises held against deliveries, by class of keys.

A router that derives a salt, an adapter or a template in another way than the engine never matches, or matches what is
not there. Both show in the same numbers, and neither says anything about how good the engine's cache is:

    broken promises   promised tokens come to less than half, smoothed, over at least 20 requests
    never promised    nothing is promised (< 2% of prompt tokens) while the engine reports that it reused >= 30%

Either makes the class *mismatched*: affinity is off for it. Predictions are still made and compared, so that it comes
back when they are right again (promises kept to 80%, or promises made at all). Other classes are not touched.

Failure mode: behind several gateways an engine may well hold what this one never sent; then "never promised" is true
and harmless, because there was no affinity to switch off.
"""

import msgspec

SAMPLES_MIN = 20
SMOOTHING = 0.1
BROKEN_BELOW, KEPT_ABOVE = 0.5, 0.8
PROMISED_BELOW, DELIVERED_ABOVE = 0.02, 0.30
CLASSES_MAX = 64


class KeyStanding(msgspec.Struct, frozen=True, kw_only=True):
    """Smoothed shares of prompt tokens promised and delivered in a class of keys, and promises kept.

    `samples`: requests whose delivery was reported; `promises`: those among them that were promised anything.
    """

    samples: int = 0
    promises: int = 0
    promised_share: float = 0.0
    delivered_share: float = 0.0
    kept_share: float = 1.0
    mismatched: bool = False


class KeyTrust:
    """The standing of every class of keys; at most 64, further ones are not judged."""

    def __init__(self) -> None:
        self._standings: dict[str, KeyStanding] = {}
        self._mismatched: set[str] = set()

    def mismatched(self, key_class: str) -> bool:
        """Return whether affinity is off for a class."""
        return key_class in self._mismatched

    def of(self, key_class: str) -> KeyStanding:
        """Return the standing of a class; nothing is held against one that was never seen."""
        return self._standings.get(key_class, KeyStanding())

    def standings(self) -> dict[str, KeyStanding]:
        """Return every class that was seen."""
        return dict(self._standings)

    def learn(
        self, key_class: str, *, promised_tokens: int, delivered_tokens: int, prompt_tokens: int
    ) -> None:
        """Compare what was promised with what the engine reported as reused."""
        old = self.of(key_class)
        if prompt_tokens <= 0 or (not old.samples and len(self._standings) >= CLASSES_MAX):
            return
        promised = min(1.0, max(0, promised_tokens) / prompt_tokens)
        delivered = min(1.0, max(0, delivered_tokens) / prompt_tokens)
        kept, promises = old.kept_share, old.promises
        if promised_tokens > 0:
            share = min(1.0, max(0, delivered_tokens) / promised_tokens)
            kept, promises = _smoothed(kept, share, promises), promises + 1
        made = KeyStanding(
            samples=old.samples + 1,
            promises=promises,
            promised_share=_smoothed(old.promised_share, promised, old.samples),
            delivered_share=_smoothed(old.delivered_share, delivered, old.samples),
            kept_share=kept,
        )
        made = msgspec.structs.replace(made, mismatched=_mismatched(made, old.mismatched))
        self._standings[key_class] = made
        (self._mismatched.add if made.mismatched else self._mismatched.discard)(key_class)


def _smoothed(old: float, sample: float, samples: int) -> float:
    # The mean of the first ones, so that one request is not a verdict.
    return old + max(SMOOTHING, 1.0 / (samples + 1)) * (sample - old)


def _mismatched(now: KeyStanding, before: bool) -> bool:
    broken = now.promises >= SAMPLES_MIN and now.kept_share < (
        KEPT_ABOVE if before else BROKEN_BELOW
    )
    never = (
        now.samples >= SAMPLES_MIN
        and now.promised_share < PROMISED_BELOW
        and now.delivered_share >= DELIVERED_ABOVE
    )
    return broken or never
