"""What was measured of one rung, joined into its result, and the words that go with it."""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from trimtab.core.types import Verdict
from trimtab.quality.eval_scores import EvalOutcome
from trimtab.quality.ladder import EXACT, Rung, RungResult, Speed, verdict_of
from trimtab.quality.loss import TextScore
from trimtab.quality.paired import PairedResult

GARBAGE_NATS = 2.0
"""A text that costs so much more than under the original is no text to the arm any more."""


class RungFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a rung really is, read back from its file or from the engine that runs it.

    `effective`: how many tensors or layers of each group have which precision.
    """

    effective: dict[str, dict[str, int]]
    bits_per_weight: float
    file_bytes: int
    kv_bytes_per_token: float | None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One rung's measurements. `evals`: names of required gates."""

    rung: Rung
    facts: RungFacts
    kinds: tuple[str, ...]
    evals: tuple[str, ...] = ()
    quality: dict[str, PairedResult] = {}
    speed: Speed | None = None
    resident_bytes: int | None = None
    signs: dict[str, float] = {}
    items: tuple[EvalOutcome, ...] = ()


def result_of(measured: Measured) -> RungResult:
    """Join the gates of a rung: each kind of text and of eval is required, all other gates can only veto.

    So a rung whose benchmark is inconclusive is held.
    """
    required = [*(loss_gate(kind) for kind in measured.kinds), *measured.evals]
    verdict, because = verdict_of(measured.quality, required=required)
    if measured.rung.shipped:
        verdict, because = Verdict.HOLD, EXACT
    return RungResult(
        rung=measured.rung,
        verdict=verdict,
        because=because,
        kinds={kind: _of_kind(measured.quality, kind) for kind in measured.kinds},
        elsewhere=_elsewhere(measured),
        quality=measured.quality,
        speed=measured.speed,
        effective=measured.facts.effective,
        bits_per_weight=measured.facts.bits_per_weight,
        file_bytes=measured.facts.file_bytes,
        resident_bytes=measured.resident_bytes,
        kv_bytes_per_token=measured.facts.kv_bytes_per_token,
        signs=measured.signs,
        items=measured.items,
    )


def garbage_of(measured: Measured, before: TextScore, after: TextScore) -> RungResult:
    """Return the result of a rung whose file or kernels are broken: it ends before it meets any traffic."""
    words = (
        f"garbage: {after.mean:.2f} nats a token on {after.name}, {before.mean:.2f} under the original; "
        "it met no traffic"
    )
    return msgspec.structs.replace(
        result_of(measured),
        verdict=Verdict.FAIL,
        because=words,
        kinds=dict.fromkeys(measured.kinds, Verdict.FAIL),
    )


def broken_of(measured: Measured, because: str) -> RungResult:
    """Return the result of a rung that did not start or answer: it could not be judged."""
    return msgspec.structs.replace(
        result_of(measured),
        verdict=Verdict.ERROR,
        because=because,
        kinds=dict.fromkeys(measured.kinds, Verdict.ERROR),
        elsewhere=Verdict.ERROR,
    )


def untried_of(measured: Measured, before: RungResult) -> RungResult:
    """Return the result of a rung whose earlier stage did not pass: lowering more on top of that is not tried."""
    words = f"not tried: {before.rung.label}, the stage before it, is {before.verdict.value}"
    return msgspec.structs.replace(
        result_of(measured),
        verdict=before.verdict,
        because=words,
        kinds=dict.fromkeys(measured.kinds, before.verdict),
    )


def is_refused(result: RungResult) -> bool:
    """Whether a rung failed and passed for no kind of text: nothing is lowered further on top of it."""
    failed = result.verdict in (Verdict.FAIL, Verdict.ERROR)
    return failed and Verdict.PASS not in result.kinds.values()


def is_harmful(gates: Mapping[str, PairedResult], kinds: Iterable[str]) -> bool:
    """Whether log loss alone shows harm in every kind of text: no other gate can change the verdict then."""
    return all(gates[loss_gate(kind)].verdict is Verdict.FAIL for kind in kinds)


def is_garbage(base: TextScore, rung: TextScore) -> bool:
    """Whether an arm no longer models text at all."""
    return not math.isfinite(rung.mean) or rung.mean > base.mean + GARBAGE_NATS


def loss_gate(kind: str) -> str:
    """Name the gate on a kind of text as a whole."""
    return f"log loss, {kind}"


def _of_kind(gates: dict[str, PairedResult], kind: str) -> Verdict:
    mine = {name: one for name, one in gates.items() if _is_of(name, kind)}
    return verdict_of(mine, required=[loss_gate(kind)])[0]


def _elsewhere(measured: Measured) -> Verdict:
    """Join the gates that are of no kind of text: a fail vetoes, a required one must pass."""
    others = {
        name: one
        for name, one in measured.quality.items()
        if not any(_is_of(name, kind) for kind in measured.kinds)
    }
    verdicts = {one.verdict for one in others.values()}
    for wanted in (Verdict.ERROR, Verdict.FAIL):
        if wanted in verdicts:
            return wanted
    missing = [name for name in measured.evals if name not in others]
    held = any(others[name].verdict is Verdict.HOLD for name in measured.evals if name in others)
    return Verdict.HOLD if missing or held else Verdict.PASS


def _is_of(name: str, kind: str) -> bool:
    # A range of positions follows the kind after a blank and begins with a number.
    rest = name.removeprefix(loss_gate(kind))
    return name != rest and (not rest or (rest[0] == " " and rest[1:2].isdigit()))


def kv_note(results: Sequence[RungResult]) -> tuple[str, ...]:
    """Say what is done with KV precisions that were measured."""
    if not any(one.rung.lowers_kv for one in results):
        return ()
    return (
        "KV precision is measured always and recommended only where KV capacity or transfer binds",
    )
