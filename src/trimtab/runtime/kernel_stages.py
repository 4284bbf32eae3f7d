"""Layouts with stages, priced by the same layout without: the package's steps differ by what stages send alone.

Its specification of a layout with stages has all layers in a row, as that without, and one operation more that sends
between the stages. So a layout is compiled once, whatever its stages, and what it was asked for is remembered; a
model whose specification differs in anything else is not priced so.
"""

from functools import cache
from typing import Any, Final

import msgspec

from trimtab.runtime.kernel_sdk import compiled, only

_SENDS: Final = ("P2P",)
_PHASES: Final = ("context_ops", "generation_ops")
_HEAD: Final = "engine"
_STAGES: Final = "pp_size"


class Remembered:
    """A compiled configuration that is asked for each time once; its methods are those of the package's engine."""

    def __init__(self, engine: Any) -> None:
        self.decode_step_latency = cache(engine.decode_step_latency)
        self.predict_prefill_latency = cache(engine.predict_prefill_latency)
        self.mixed_step_latency = cache(engine.mixed_step_latency)
        self.decode_step_per_op = cache(engine.decode_step_per_op)


class Staged:
    """A compiled configuration without stages, and what stages send, as one that takes the time of both."""

    def __init__(self, whole: Any, sends: Any) -> None:
        self._whole = whole
        self._sends = sends

    def decode_step_latency(self, *sizes: int) -> float:
        """Return a decode step in milliseconds; sizes as the package has them."""
        return float(self._whole.decode_step_latency(*sizes)) + float(
            self._sends.decode_step_latency(*sizes)
        )

    def predict_prefill_latency(self, *sizes: int) -> float:
        """Return a step of a prompt in milliseconds."""
        return float(self._whole.predict_prefill_latency(*sizes)) + float(
            self._sends.predict_prefill_latency(*sizes)
        )

    def mixed_step_latency(self, *sizes: int) -> float:
        """Return a step of a chunk beside streams in milliseconds."""
        return float(self._whole.mixed_step_latency(*sizes)) + float(
            self._sends.mixed_step_latency(*sizes)
        )

    def decode_step_per_op(self, *sizes: int) -> list[Any]:
        """Return the operations of a decode step with their milliseconds; what stages send comes last."""
        return [
            *self._whole.decode_step_per_op(*sizes),
            *self._sends.decode_step_per_op(*sizes),
        ]


def sends_of(spec: str, without: str, root: str | None) -> Remembered | None:
    """Return what stages send, from specifications of one layout with and without; None where they differ otherwise."""
    if _but_sends(spec) != _but_sends(without):
        return None
    return Remembered(compiled(only(spec, _SENDS), root))


def _but_sends(spec: str) -> dict[str, Any]:
    whole: dict[str, Any] = msgspec.json.decode(spec)
    for phase in _PHASES:
        whole[phase] = [each for each in whole[phase] if not set(each) <= set(_SENDS)]
    whole[_HEAD] = {name: told for name, told in whole[_HEAD].items() if name != _STAGES}
    return whole
