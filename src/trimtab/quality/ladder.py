"""The ladder of precisions, what each rung was found to do, and which one to take.

Stages in order: (a) weights of linear layers, the less sensitive ones first; (b) activations; (c) the KV cache,
measured always and recommended only where KV capacity or its transfer binds. llama.cpp quantizes activations inside its
kernels together with the weights, so (a) and (b) move at once there.

Choice: of the rungs whose quality passed in every kind of text, the one of lowest latency and cost; of two that cannot
be told apart, the one with more bits. Never simply the fewest bits. A rung that is exact by construction (the
original was expanded from it) proves nothing and is never the answer.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from trimtab.core.stats import Interval, ratio_interval
from trimtab.core.types import Verdict
from trimtab.engines.compressed_tensors import Scheme
from trimtab.engines.gguf_tensors import ATTENTION, FEED_FORWARD, LINEAR, Group, TensorKind
from trimtab.quality.eval_scores import EvalOutcome
from trimtab.quality.paired import PairedResult

ORIGINAL_KV: Final = "f16"
ORIGINAL_KV_VLLM: Final = "auto"


class Stage(StrEnum):
    """What a rung lowers beyond the one before it."""

    ORIGINAL = "original"
    WEIGHTS = "weights"
    ACTIVATIONS = "activations"
    KV = "kv"


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One precision to measure. `shipped`: the file as it was given, from which the original was expanded.

    `kinds`: types of a GGUF's groups; `scheme`: how a checkpoint for vLLM holds its groups `lowered`. `after`: the
    rung of an earlier stage that must not have failed. `quality_only`: it answers for the rounding alone, its speed
    is the original's.
    """

    name: str
    stages: tuple[Stage, ...]
    kinds: dict[Group, TensorKind] = {}
    kv_type: str = ORIGINAL_KV
    shipped: bool = False
    scheme: Scheme | None = None
    lowered: tuple[Group, ...] = ()
    after: str = ""
    quality_only: bool = False

    @property
    def label(self) -> str:
        """The name with its KV precision."""
        return f"{self.name}, KV {self.kv_type}" if self.lowers_kv else self.name

    @property
    def lowers_kv(self) -> bool:
        """Whether its KV precision is not the original's."""
        return self.kv_type not in (ORIGINAL_KV, ORIGINAL_KV_VLLM)

    @property
    def is_original(self) -> bool:
        """Whether nothing is lowered."""
        return self.stages == (Stage.ORIGINAL,)


def llamacpp_ladder(
    lowered: Sequence[Group] | None,
    *,
    kv_types: Sequence[str] = (ORIGINAL_KV, "q8_0"),
    shipped: str | None = None,
) -> tuple[Rung, ...]:
    """Return the rungs for one model, the original first.

    `lowered`: groups that sensitivity allows to lower first, None where it was not measured: then the feed-forward
    ones; the other linear groups follow at no less than 8 bits. Where it allows none, no group goes first.
    `shipped`: the type that the model came in, if it was not its original precision.
    """
    able = None if lowered is None else [group for group in lowered if group in LINEAR]
    first = tuple(group for group in LINEAR if group in (FEED_FORWARD if able is None else able))
    rest = tuple(group for group in LINEAR if group not in first)
    q8 = TensorKind.Q8_0
    weights: list[tuple[str, dict[Group, TensorKind]]] = [
        ("bf16", dict.fromkeys(LINEAR, TensorKind.BF16))
    ]
    if first and rest:
        weights.append((f"{groups_word(first)} q8_0", dict.fromkeys(first, q8)))
    weights.append(("q8_0", dict.fromkeys(LINEAR, q8)))
    for kind in (TensorKind.Q5_1, TensorKind.Q5_0, TensorKind.Q4_0) if first else ():
        mixed = {**dict.fromkeys(rest, q8), **dict.fromkeys(first, kind)}
        name = f"{groups_word(first)} {kind.value}, rest q8_0" if rest else kind.value
        weights.append((name, mixed))
    if rest:
        weights.append(("q4_0", dict.fromkeys(LINEAR, TensorKind.Q4_0)))
    both = (Stage.WEIGHTS, Stage.ACTIVATIONS)
    rungs = [Rung(name="f16", stages=(Stage.ORIGINAL,), kinds={})]
    for name, kinds in weights:
        stages = (Stage.WEIGHTS,) if name == "bf16" else both
        rungs.append(Rung(name=name, stages=stages, kinds=kinds))
    if shipped is not None:
        rungs.append(Rung(name=f"{shipped} as shipped", stages=both, kinds={}, shipped=True))
    return tuple(
        msgspec.structs.replace(
            rung,
            kv_type=kv,
            stages=rung.stages if kv == ORIGINAL_KV else (*rung.stages, Stage.KV),
            after="" if kv == ORIGINAL_KV else rung.name,
        )
        # Rungs that share a file stand side by side, so that it is written once.
        for rung in rungs
        for kv in kv_types
    )


def groups_word(groups: Sequence[Group]) -> str:
    """Name groups that are lowered together."""
    if groups == FEED_FORWARD:
        return "ffn"
    if groups == ATTENTION:
        return "attention"
    return "+".join(group.value for group in groups)


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """A rung over the original, of rounds in which both were measured in turn: geometric mean and its interval."""

    n: int
    ratio: float | None
    interval: Interval | None
    base: float | None
    rung: float | None


def ratio_of(base: Sequence[float], rung: Sequence[float]) -> Ratio:
    """Compare rounds in pairs; raises `ValueError` for lists of unequal length or values that are not positive."""
    logs = [math.log(new / old) for old, new in zip(base, rung, strict=True)]
    if not logs:
        return Ratio(n=0, ratio=None, interval=None, base=None, rung=None)
    return Ratio(
        n=len(logs),
        ratio=math.exp(math.fsum(logs) / len(logs)),
        interval=ratio_interval(base, rung),
        base=_median(base),
        rung=_median(rung),
    )


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """What users and the bill see. `tokens_per_s`: output tokens of all streams, by concurrency."""

    ttft_ms: Ratio
    tpot_ms: Ratio
    tokens_per_s: dict[int, Ratio]
    score: Ratio
    """Geometric mean of TPOT and of cost per token at the highest concurrency."""


class RungResult(msgspec.Struct, frozen=True, kw_only=True):
    """One rung as measured. `kinds`: verdict by kind of text; `elsewhere`: of all gates that are of no kind.

    `effective`: types read back from the file, by group.
    """

    rung: Rung
    verdict: Verdict
    because: str
    kinds: dict[str, Verdict]
    elsewhere: Verdict
    quality: dict[str, PairedResult]
    speed: Speed | None
    effective: dict[str, dict[str, int]]
    bits_per_weight: float
    file_bytes: int
    resident_bytes: int | None
    kv_bytes_per_token: float | None
    signs: dict[str, float] = {}
    """Early signs, never gates: agreement of tokens, first divergence, and so on."""
    items: tuple[EvalOutcome, ...] = ()
    """What it made of the eval items, in the order of the original's."""


class RungChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The rung to take. `refused_for`: kinds of traffic that must stay with the original."""

    rung: str
    because: str
    refused_for: tuple[str, ...] = ()


EXACT: Final = "exact by construction, no evidence: the original was expanded from this very file"


def verdict_of(
    quality: Mapping[str, PairedResult], *, required: Iterable[str]
) -> tuple[Verdict, str]:
    """Join the answers of one rung: any fail or error counts; of the required ones a hold, too."""
    for wanted in (Verdict.ERROR, Verdict.FAIL):
        found = [(name, one) for name, one in quality.items() if one.verdict is wanted]
        if found:
            return wanted, f"{found[0][0]}: {found[0][1].because}"
    needed = list(required)
    missing = [name for name in needed if name not in quality]
    if missing or not needed:
        return Verdict.HOLD, f"{', '.join(missing) or 'nothing'} was not measured"
    held = [(name, quality[name]) for name in needed if quality[name].verdict is Verdict.HOLD]
    if held:
        return Verdict.HOLD, f"{held[0][0]}: {held[0][1].because}"
    worst = max(needed, key=lambda name: quality[name].harm or 0.0)
    return Verdict.PASS, f"{worst}: {quality[worst].because}"


def choose(results: Sequence[RungResult], *, kv_binds: bool) -> RungChoice:
    """Choose among measured rungs; `results` begins with the original, `kv_binds`: KV capacity or transfer binds.

    A rung that fails for some kinds only can be chosen for the others if it passed everywhere else.
    """
    original = results[0].rung.label
    able = [one for one in results if _can_be_chosen(one, kv_binds)]
    best: RungResult | None = None
    for one in sorted(able, key=lambda each: -each.bits_per_weight):
        if _is_better(one, best, results[0]):
            best = one
    if best is None or best.speed is None or best.speed.score.interval is None:
        return RungChoice(rung=original, because=_nothing_words(results, able))
    refused = tuple(kind for kind, verdict in best.kinds.items() if verdict is Verdict.FAIL)
    score, bounds = best.speed.score, best.speed.score.interval
    words = (
        f"latency and cost at {score.ratio:.2f} of the original [{bounds.low:.2f}, {bounds.high:.2f}] "
        f"(n={score.n} rounds), quality {best.because}"
    )
    if refused:
        words += f"; {', '.join(refused)} must stay with the original"
    return RungChoice(rung=best.rung.label, because=words, refused_for=refused)


def _can_be_chosen(one: RungResult, kv_binds: bool) -> bool:
    if one.rung.shipped or one.rung.is_original:
        return False
    if one.rung.lowers_kv and not kv_binds:
        return False
    if one.verdict is Verdict.PASS:
        return True
    # What harms one kind of traffic may serve the others, if nothing else speaks against it.
    told = set(one.kinds.values())
    return one.elsewhere is Verdict.PASS and told == {Verdict.PASS, Verdict.FAIL}


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """What a rung must lie below to be faster and cheaper, as parts of the original's latency and cost.

    `high`: the high end of its interval; `ratio`: its ratio.
    """

    high: float = 1.0
    ratio: float = 1.0


def bar_of(original: RungResult) -> Bar:
    """Return the bar that the original beside itself sets; 1 for both parts where that was not measured.

    A ratio inside the bounds of the original beside itself is no gain of a rung. Where the original came out faster
    than itself beyond noise its arms are not alike: then a rung's whole interval must lie below those bounds.
    """
    found = None if original.speed is None else original.speed.score.interval
    if found is None:
        return Bar()
    return Bar(high=found.low if found.high < 1.0 else 1.0, ratio=min(1.0, found.low))


def why_not_faster(score: Ratio | None, bar: Bar) -> str:
    """Say why a rung of that latency and cost does not count as faster; empty where it does."""
    if score is None or score.ratio is None or score.interval is None:
        return "its latency and cost have no interval"
    low, high = score.interval.low, score.interval.high
    told = f"{score.ratio:.3f} [{low:.3f}, {high:.3f}]"
    if not high < bar.high:
        return f"{told} does not lie below the bar {bar.high:.3f}"
    if not score.ratio < bar.ratio:
        return (
            f"{told} lies below {bar.high:.3f}, but its ratio is not below the bar {bar.ratio:.3f}, the low end of "
            "the original beside itself"
        )
    return ""


def why_slower(score: Ratio | None) -> str:
    """Say why a rung is shown to be slower and dearer than the original; empty where it is not."""
    if score is None or score.ratio is None or score.interval is None:
        return "its latency and cost have no interval"
    low, high = score.interval.low, score.interval.high
    return f"{score.ratio:.3f} [{low:.3f}, {high:.3f}] lies above 1" if low > 1.0 else ""


def spares_kv(one: RungResult, original: RungResult) -> bool:
    """Whether a rung's KV takes fewer bytes than the original's, which is reason enough for it where KV binds.

    Where bytes are not known its type decides. A type of as many bytes (bf16 for f16) spares nothing.
    """
    ours, theirs = one.kv_bytes_per_token, original.kv_bytes_per_token
    if ours is None or theirs is None:
        return one.rung.lowers_kv
    return one.rung.lowers_kv and ours < theirs


def _is_better(one: RungResult, best: RungResult | None, original: RungResult) -> bool:
    """Whether a rung with fewer bits is told apart from the best so far, and from the original.

    A rung of another KV precision is only asked where KV binds.
    """
    if one.speed is None or one.speed.score.interval is None or one.speed.score.ratio is None:
        return False
    by_kv = spares_kv(one, original)
    if not by_kv and why_not_faster(one.speed.score, bar_of(original)):
        return False
    if best is None:
        return not by_kv or not why_slower(one.speed.score)
    assert best.speed is not None
    assert best.speed.score.ratio is not None
    narrower = sum(v is Verdict.PASS for v in one.kinds.values()) < sum(
        v is Verdict.PASS for v in best.kinds.values()
    )
    if narrower:
        return False
    if _saves_kv(one, best):
        # KV is what binds: fewer bytes of it count unless the rung is shown to be slower.
        return not is_shown_faster(best.speed.score, one.speed.score)
    return is_shown_faster(one.speed.score, best.speed.score)


def is_shown_faster(one: Ratio, other: Ratio) -> bool:
    """Say whether one rung's latency and cost are below another's beyond the noise of both.

    Each was measured beside the original in rounds of its own, so both have noise: half widths of their intervals, as
    logarithms, add up in squares.
    """
    if one.ratio is None or other.ratio is None or one.interval is None or other.interval is None:
        return False
    noise = math.hypot(_half_width(one.interval), _half_width(other.interval))
    return math.log(other.ratio / one.ratio) > noise


def _half_width(interval: Interval) -> float:
    return 0.5 * math.log(interval.high / interval.low)


def _saves_kv(one: RungResult, best: RungResult) -> bool:
    ours, theirs = one.kv_bytes_per_token, best.kv_bytes_per_token
    return ours is not None and theirs is not None and ours < theirs


def _nothing_words(results: Sequence[RungResult], able: Sequence[RungResult]) -> str:
    if able:
        return "no rung whose quality passed is faster and cheaper than the original beyond the noise of the rounds"
    held = sum(one.verdict is Verdict.HOLD for one in results)
    return f"no rung passed its quality gates ({held} are held for want of evidence)"


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])
