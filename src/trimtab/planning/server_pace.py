"""What a server adds to the times of its devices: host time of steps and streams, and what a first token waits for.

Few numbers for each engine, the same for every device and model. They were fitted to measured rows of closed-loop
benchmarks (robust error of logarithms, models weighted alike) and checked on models that were left out; see
docs/plan.md. They speak of the engines' usual settings: chunked prefill, prompts admitted first come first served,
streaming over HTTP.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from trimtab.core.served import EngineKind


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds that a server adds.

    `step_ms` to each decode step and `stream_ms` to it for every stream of the replica; `first_ms` to each first token
    and `client_ms` to it for every stream, as reading prompts and writing tokens share a host. `prefill_factor`: what a
    prompt's prefill takes in a server over what its kernels take. `wait_share`: part (0 to 1) of the other streams'
    prompts that a prompt waits for in a closed loop: streams begin together, and those of equal length end together.
    """

    step_ms: float
    stream_ms: float
    first_ms: float
    client_ms: float
    prefill_factor: float
    wait_share: float


PACES: Final[Mapping[EngineKind, Pace]] = {
    EngineKind.VLLM: Pace(
        step_ms=0.3,
        stream_ms=0.004,
        first_ms=17.0,
        client_ms=0.3,
        prefill_factor=1.3,
        wait_share=0.075,
    ),
    EngineKind.SGLANG: Pace(
        step_ms=1.6,
        stream_ms=0.011,
        first_ms=200.0,
        client_ms=3.3,
        prefill_factor=1.0,
        wait_share=0.105,
    ),
    EngineKind.TRTLLM: Pace(
        step_ms=0.0,
        stream_ms=0.0,
        first_ms=13.0,
        client_ms=1.6,
        prefill_factor=2.5,
        wait_share=0.055,
    ),
}
USUAL: Final = PACES[EngineKind.VLLM]
"""For engines that no rows were measured of."""


def pace_of(engine: EngineKind) -> Pace:
    """Return what an engine's servers add; vLLM's for one that was not measured."""
    return PACES.get(engine, USUAL)
