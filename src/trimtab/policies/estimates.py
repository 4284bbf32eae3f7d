"""What is estimated of a request before it is served: its prompt's tokens, its answer's length, its cuts."""

import math
from collections import OrderedDict
from typing import Final

from trimtab.core.cuts import Cut, cuts_of
from trimtab.core.ports import RequestFacts
from trimtab.core.record import RequestRecord, Tokens

BYTES_PER_TOKEN_START: Final = 3.6
BYTES_PER_TOKEN_LIMITS: Final = (1.0, 16.0)
RATIO_SMOOTHING: Final = 0.1
SAMPLE_TOKENS_MIN: Final = 16
LABELS_MAX: Final = 256
MODEL_CHARS_MAX: Final = 128
OUTPUT_TOKENS_START: Final = 128.0
OUTPUT_SMOOTHING: Final = 0.1


class TokenRatio:
    """Bytes of prompt per token, learned from the prompt tokens that engines report (smoothing 0.1)."""

    def __init__(self) -> None:
        self.bytes_per_token = BYTES_PER_TOKEN_START

    def tokens(self, size: int) -> int:
        """Estimate the tokens of `size` bytes; at least 1 unless there are none."""
        return math.ceil(size / self.bytes_per_token)

    def learn(self, size: int, tokens: int | None) -> None:
        """Take in that a prompt of `size` bytes had `tokens` tokens; short prompts say too little."""
        if tokens is None or tokens < SAMPLE_TOKENS_MIN:
            return
        low, high = BYTES_PER_TOKEN_LIMITS
        sample = min(high, max(low, size / tokens))
        self.bytes_per_token += RATIO_SMOOTHING * (sample - self.bytes_per_token)


class OutputExpectation:
    """Output tokens to expect of a request: the smoothed mean of its label, at most its max_tokens."""

    def __init__(self) -> None:
        self._means: OrderedDict[str | None, float] = OrderedDict()

    def tokens(self, label: str | None, max_tokens: int | None) -> int:
        """Return the expected output tokens of a request, at least 1."""
        mean = self._means.get(label, OUTPUT_TOKENS_START)
        return max(1, round(mean if max_tokens is None else min(mean, max_tokens)))

    def learn(self, label: str | None, tokens: int) -> None:
        """Take in how long an answer was; the label longest unused goes when there are 256."""
        mean = self._means.pop(label, float(tokens))
        self._means[label] = mean + OUTPUT_SMOOTHING * (tokens - mean)
        if len(self._means) > LABELS_MAX:
            self._means.popitem(last=False)


def model_name(facts: RequestFacts) -> str | None:
    """Return the model that a request names, as records keep it: not longer than names are."""
    return facts.model[:MODEL_CHARS_MAX] if facts.model else None


def cuts_before_serving(
    facts: RequestFacts,
    *,
    label: str | None,
    repetition: float | None,
    prompt_tokens: int,
    tenant: str | None = None,
    marks: tuple[str, ...] = (),
) -> tuple[Cut, ...]:
    """Return the cuts of a request that are known before it is served; input tokens are estimated."""
    known = RequestRecord(
        request_id="",
        arrived_at_s=0.0,
        finished_at_s=0.0,
        endpoint="",
        stream=facts.stream,
        label=label,
        repetition=repetition,
        temperature=facts.temperature,
        constraint=facts.constraint,
        tokens=Tokens(prompt=prompt_tokens),
        model=model_name(facts),
        tenant=tenant,
        marks=marks,
    )
    return cuts_of(known)
