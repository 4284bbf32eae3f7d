"""What precision does to drafts and to the cache: equal requests at several precisions, beside the original.

    python bench/bench_interactions.py [--model FILE] [--edits 6] [--weights q8_0 q4_0] [--kv q8_0 q4_0]
                                       [--match 4] [--depth 8] [--count] [--out interactions.json]

For each precision (other weights with the original's KV, the original's weights with other KV) two embedded servers
run, one that cannot draft and one that drafts n-grams, and answer every request one after the other, greedily; who
goes first alternates. Printed for each kind of request:
    acceptance        accepted over drafted tokens, as the engine counts them
    coverage          accepted over output tokens, and how it differs from the original's on the same requests
    TPOT on / off     with its 95% interval, paired by request
    KV bytes a token  of the slots as the engine saves them
Looping answers are left out. Whether KV may be handed over between two precisions is asked of their KV keys.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import msgspec

from trimtab.core.config import EngineConfig
from trimtab.core.revision import Model, Revision, Speculation, SpeculationMethod
from trimtab.core.stats import mean_interval
from trimtab.engines.gguf_tensors import LINEAR, TensorKind
from trimtab.engines.llamacpp_decode import Decoded
from trimtab.quality.ladder import Ratio, ratio_of
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.gguf_codec import convert
from trimtab.runtime.launcher import LlamaCppLauncher
from trimtab.runtime.model import baseline_revision, check_model, find_model
from trimtab.runtime.quantize_original import quantized_groups, shipped_kind
from trimtab.runtime.sources import standard_library
from trimtab.runtime.speculate_arm import DraftArm
from trimtab.runtime.speculate_record import Asked, asked_of
from trimtab.runtime.speculate_stage import DraftStage
from trimtab.workloads.base import looks_looping
from trimtab.workloads.draft_samples import DraftSample, standard_samples
from trimtab.workloads.foretold import Share
from trimtab.workloads.foretold import ratio_of as share_of

OFF = Speculation()
ORIGINAL = "f16"
CONTEXT_TOKENS = 1024


class Pair(msgspec.Struct, frozen=True):
    """One request at one precision, without and with drafts; `off` None: it was only counted."""

    label: str
    off: Decoded | None
    on: Decoded

    @property
    def usable(self) -> bool:
        """Whether no answer loops and each has a time."""
        answers = [each for each in (self.off, self.on) if each is not None]
        return all(each.tpot_ms and not looks_looping(each.text) for each in answers)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one precision and one kind of request."""

    weights: str
    kv: str
    label: str
    requests: int
    looping: int
    acceptance: Share
    coverage: Share
    coverage_change: Share
    tpot: Ratio
    tpot_off_ms: float | None
    kv_bytes_per_token: float
    kv_key_as_original: bool


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """One precision: its name, its revision and what it answered."""

    weights: str
    revision: Revision
    pairs: tuple[Pair, ...]
    kv_bytes_per_token: float


def asked_for(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="")
    parser.add_argument("--edits", type=int, default=6)
    parser.add_argument("--weights", nargs="*", default=["q8_0", "q4_0"])
    parser.add_argument("--kv", nargs="*", default=["q8_0", "q4_0"])
    parser.add_argument("--match", type=int, default=4)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", action="store_true", help="no plain server, and no times")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(arguments)


async def measured(
    stage: DraftStage,
    launcher: LlamaCppLauncher,
    speculation: Speculation,
    samples: Sequence[DraftSample],
    *,
    timed: bool,
) -> tuple[tuple[Pair, ...], float]:
    """Answer everything on a plain and on a drafting server of one precision; return the pairs and KV bytes a token."""
    if not timed:
        return await counted(stage, launcher, speculation, samples)
    plain = await stage.start("plain", OFF)
    drafting = await stage.start("drafting", speculation)
    try:
        asked = await asked_of(plain, samples)
        for slot, one in enumerate(asked):
            await plain.warm(one.prompt, slot=slot)
        await stage.spread(plain, drafting, range(len(asked)))
        saved = await launcher.save_kv(plain.name)
        launcher.discard_kv(saved)
        pairs = [await both(plain, drafting, one, slot) for slot, one in enumerate(asked)]
        return tuple(pairs), saved.bytes / saved.tokens
    finally:
        await stage.stop(drafting)
        await stage.stop(plain)


async def counted(
    stage: DraftStage,
    launcher: LlamaCppLauncher,
    speculation: Speculation,
    samples: Sequence[DraftSample],
) -> tuple[tuple[Pair, ...], float]:
    """Answer everything on a drafting server alone: what is drafted and accepted does not depend on the machine."""
    drafting = await stage.start("drafting", speculation)
    try:
        pairs: list[Pair] = []
        for slot, one in enumerate(await asked_of(drafting, samples)):
            answer = await drafting.answer(one.prompt, slot=slot, temperature=0.0, seed=1)
            pairs.append(Pair(one.sample.label, None, answer))
        saved = await launcher.save_kv(drafting.name)
        launcher.discard_kv(saved)
        return tuple(pairs), saved.bytes / saved.tokens
    finally:
        await stage.stop(drafting)


async def both(plain: DraftArm, drafting: DraftArm, one: Asked, slot: int) -> Pair:
    """Answer one request on both servers, one after the other."""
    seen: dict[str, Decoded] = {}
    for arm in (plain, drafting) if slot % 2 == 0 else (drafting, plain):
        seen[arm.name] = await arm.answer(one.prompt, slot=slot, temperature=0.0, seed=1)
    return Pair(one.sample.label, seen[plain.name], seen[drafting.name])


def rows_of(found: Sequence[Precision]) -> list[Row]:
    """Return a row for each precision and kind of request; the first precision is the original."""
    labels = dict.fromkeys(pair.label for pair in found[0].pairs)
    return [row_of(found[0], each, label) for each in found for label in labels]


def row_of(original: Precision, other: Precision, label: str) -> Row:
    """Compare one precision with the original on the requests of one label, pair by pair."""
    both_ways = [
        (old, new)
        for old, new in zip(original.pairs, other.pairs, strict=True)
        if new.label == label and old.usable and new.usable
    ]
    mine = [pair for pair in other.pairs if pair.label == label]
    usable = [pair for pair in mine if pair.usable]
    changes = [covered(new.on) - covered(old.on) for old, new in both_ways]
    times = [
        (pair.off.tpot_ms or 0.0, pair.on.tpot_ms or 0.0) for pair in usable if pair.off is not None
    ]
    return Row(
        weights=other.weights,
        kv=other.revision.kv_type,
        label=label,
        requests=len(mine),
        looping=len(mine) - len(usable),
        acceptance=share_of([p.on.accepted for p in usable], [p.on.drafted for p in usable]),
        coverage=share_of([p.on.accepted for p in usable], [p.on.output_tokens for p in usable]),
        coverage_change=Share(
            value=sum(changes) / len(changes) if changes else None,
            interval=mean_interval(changes),
            n=len(changes),
        ),
        tpot=ratio_of([off for off, _ in times], [on for _, on in times]),
        tpot_off_ms=sum(off for off, _ in times) / len(times) if times else None,
        kv_bytes_per_token=other.kv_bytes_per_token,
        kv_key_as_original=other.revision.kv_key == original.revision.kv_key,
    )


def covered(answer: Decoded) -> float:
    """Part of an answer's tokens that were drafted and accepted."""
    return answer.accepted / answer.output_tokens if answer.output_tokens else 0.0


def models_of(given: Model, wanted: Sequence[str], folder: Path) -> dict[str, Model]:
    """Write the original's expansion and every precision of its linear layers; the original comes first."""
    original = given
    if shipped_kind(check_model(given.path)) is not None:
        target = folder / "original-f16.gguf"
        convert(Path(given.path), target, dict.fromkeys(quantized_groups(given), TensorKind.F16))
        original = find_model(str(target))
    found = {ORIGINAL: original}
    for name in wanted:
        target = folder / f"{name}.gguf"
        convert(Path(original.path), target, dict.fromkeys(LINEAR, TensorKind(name)))
        found[name] = find_model(str(target))
    return found


def shown(share: Share) -> str:
    """Return a share with its interval."""
    if share.value is None:
        return "unknown"
    if share.interval is None:
        return f"{share.value:.1%} (n={share.n})"
    low, high = max(-1.0, share.interval.low), min(1.0, share.interval.high)
    return f"{share.value:.1%} [{low:.1%}, {high:.1%}] n={share.n}"


def line_of(row: Row) -> str:
    """Return a row of the table in Markdown."""
    tpot = "not timed" if row.tpot.n == 0 else "unknown"
    if row.tpot.ratio is not None and row.tpot.interval is not None:
        tpot = f"{row.tpot.ratio:.2f} [{row.tpot.interval.low:.2f}, {row.tpot.interval.high:.2f}] n={row.tpot.n}"
    key = "equal" if row.kv_key_as_original else "unequal: refused"
    return (
        f"| {row.weights} | {row.kv} | {row.label} | {shown(row.acceptance)} | {shown(row.coverage)} | "
        f"{shown(row.coverage_change)} | {tpot} | {row.kv_bytes_per_token:,.0f} | {key} |"
    )


HEAD = (
    "| weights | KV | requests | acceptance | coverage | change of coverage | TPOT on / off | KV bytes a token | "
    "KV key |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


async def run(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Measure the original, then other weights with its KV, then its weights with other KV."""
    clock = SystemClock()
    given = find_model(options.model)
    models = models_of(given, options.weights, folder)
    samples = standard_samples(standard_library(), each=options.edits, seed=options.seed)
    samples = tuple(sample for sample in samples if sample.schema is None)
    base = baseline_revision(EngineConfig(model=given.path)).replace(
        slots=len(samples), context_tokens=CONTEXT_TOKENS
    )
    wanted = [*((name, ORIGINAL) for name in models), *((ORIGINAL, kv) for kv in options.kv)]
    speculation = Speculation(
        method=SpeculationMethod.NGRAM_SIMPLE,
        match_tokens=options.match,
        draft_tokens_max=options.depth,
    )
    found: list[Precision] = []
    launcher = LlamaCppLauncher(clock=clock, start_timeout_s=600.0)
    try:
        async with aiohttp.ClientSession() as session:
            for name, kv in wanted:
                revision = base.replace(model=models[name], kv_type=kv)
                stage = DraftStage(launcher, session, clock, revision)
                pairs, kv_bytes = await measured(
                    stage, launcher, speculation, samples, timed=not options.count
                )
                told = Precision(
                    weights=name, revision=revision, pairs=pairs, kv_bytes_per_token=kv_bytes
                )
                found.append(told)
                for row in rows_of([found[0], told])[-len({pair.label for pair in pairs}) :]:
                    print(line_of(row), flush=True)
    finally:
        await launcher.close()
    return rows_of(found)


def main() -> None:
    """Measure and print."""
    options = asked_for()
    print(HEAD)
    with tempfile.TemporaryDirectory(prefix="trimtab-interactions-") as folder:
        rows = asyncio.run(run(options, Path(folder)))
    if options.out is not None:
        options.out.write_text(json.dumps([msgspec.to_builtins(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
