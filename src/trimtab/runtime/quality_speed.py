"""The speed of a rung beside the original: both run, and one pass of one arm follows the other (`quality.turns`).

Before each pass the arm answers one request that is not timed: so both begin from work of their own, with their
weights in the processor's caches, and what the other arm's threads still do after their last token is over.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from trimtab.quality.ladder import Speed
from trimtab.quality.turns import SpeedSeen, passes_of, speed_from
from trimtab.runtime.asked_arm import ArmError
from trimtab.runtime.load import run_load
from trimtab.runtime.load_result import LoadResult
from trimtab.workloads.steady import Steady, steady

INPUT_TOKENS: Final = 96
OUTPUT_TOKENS: Final = 24
LONE_OUTPUT_TOKENS: Final = 64
"""A lone stream's time per token is one number of one request: few tokens would tell of the half second they took."""
WARM_OUTPUT_TOKENS: Final = 8
WARM_PROMPTS: Final = 999
"""Which prompts warm an arm up: other ones than any concurrency has, so that no cache knows what is timed."""

Warm = Callable[[str, int], Awaitable[None]]
See = Callable[[str, int], Awaitable[SpeedSeen]]
"""(where an arm answers, which prompts)."""


async def speed_of(
    base_url: str,
    rung_url: str,
    *,
    rounds: int,
    concurrencies: Sequence[int],
    seed: int = 0,
) -> Speed:
    """Measure both in `rounds` of four passes; raises `ArmError`.

    `seed`: another one for each rung, or the original would have its prompts in its cache and the rung would not.
    """

    async def see(url: str, prompts: int) -> SpeedSeen:
        return await _seen(url, prompts, concurrencies)

    return await in_turns(base_url, rung_url, rounds=rounds, seed=seed, warm=_warmed, see=see)


async def in_turns(
    base_url: str, rung_url: str, *, rounds: int, seed: int, warm: Warm, see: See
) -> Speed:
    """Go through the passes: each arm is warmed up alike before each of its own."""
    kept: dict[bool, list[SpeedSeen]] = {False: [], True: []}
    for one in passes_of(rounds, seed=seed):
        url = rung_url if one.is_rung else base_url
        await warm(url, one.prompts)
        seen = await see(url, one.prompts)
        if one.kept:
            kept[one.is_rung].append(seen)
    return speed_from(kept[False], kept[True])


async def _warmed(url: str, prompts: int) -> None:
    await _steady(url, 1, 1000 * prompts + WARM_PROMPTS, WARM_OUTPUT_TOKENS)


async def _seen(url: str, prompts: int, concurrencies: Sequence[int]) -> SpeedSeen:
    # Both arms meet the same prompts, and neither meets one twice.
    alone = (await _steady(url, 1, 1000 * prompts + 1, LONE_OUTPUT_TOKENS)).requests[0]
    if alone.ttft_ms is None or alone.tpot_ms is None:
        raise ArmError(f"{url} gave no latency: status {alone.status} {alone.error or ''}")
    rates: dict[int, float] = {}
    for streams in concurrencies:
        found = await _steady(url, streams, 1000 * prompts + streams, OUTPUT_TOKENS)
        rate = found.summary.output_tokens_per_s
        if not rate or found.summary.errors:
            raise ArmError(f"{url} failed at {streams} streams: {found.summary.errors}")
        rates[streams] = rate
    return SpeedSeen(alone.ttft_ms, alone.tpot_ms, rates)


async def _steady(url: str, concurrency: int, seed: int, output_tokens: int) -> LoadResult:
    shape = Steady(
        concurrency=concurrency,
        input_tokens=INPUT_TOKENS,
        output_tokens=output_tokens,
        rounds=1,
        seed=seed,
    )
    return await run_load(url, steady(shape))
