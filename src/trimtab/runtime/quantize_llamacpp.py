"""llama.cpp's side of a walk over precisions: GGUF files with a type for each group, the embedded engine's arms."""

import asyncio
import platform
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from trimtab.core.ports import Clock, LaunchError
from trimtab.core.revision import Model, Revision
from trimtab.engines.gguf import GGUFError
from trimtab.engines.gguf_tensors import Group, TensorKind, bits_per_weight, kinds_by_group
from trimtab.engines.llamacpp import NAME
from trimtab.engines.llamacpp_score import LlamaCppScore
from trimtab.quality.ladder import EXACT, ORIGINAL_KV, Rung, RungResult, llamacpp_ladder
from trimtab.quality.loss import TextScore
from trimtab.quality.rung_results import RungFacts, kv_note
from trimtab.quality.sensitivity import Sensitivity
from trimtab.runtime import quality_pair as pair
from trimtab.runtime.gguf_codec import convert
from trimtab.runtime.launcher import LlamaCppLauncher
from trimtab.runtime.model import (
    KV_BYTES,
    check_model,
    engine_version,
    find_model,
    holds_checkpoint,
    resolved,
)
from trimtab.runtime.quality_arm import QualityArm, Window
from trimtab.runtime.quantize_ask import QuantizeAsk
from trimtab.runtime.quantize_checks import check_tokenizer, check_weights
from trimtab.runtime.quantize_engine import OriginalArm, Progress, RungArm, RungError
from trimtab.runtime.quantize_original import CONTEXT_TOKENS, quantized_groups, shipped_kind
from trimtab.runtime.quantize_sensitivity import Probes, sensitivity_of
from trimtab.runtime.to_end import in_thread

ORIGINAL: Final = "original"
RUNG: Final = "rung"
SLOTS: Final = 4
SPARE_BYTES: Final = 64 * 1024 * 1024


class LlamaCppLadder:
    """Implements `LadderEngine`; use it once. Raises `LaunchError` for a model that cannot be walked."""

    def __init__(self, ask: QuantizeAsk, session: aiohttp.ClientSession, clock: Clock) -> None:
        self._ask = ask
        self._session = session
        if ask.model and holds_checkpoint(folder := resolved(ask.model)):
            raise LaunchError(
                f"{folder} is a folder of weights as vLLM and SGLang serve them, and llama.cpp's ladder is one of GGUF "
                "files: give --engine vllm, whose ladder is one of such folders, or name a GGUF file"
            )
        self._source = find_model(ask.model)
        header = check_model(self._source.path)
        check_tokenizer(self._source.path, header)
        self._shipped = shipped_kind(header)
        self._original = self._source
        self._launcher = LlamaCppLauncher(clock=clock, start_timeout_s=ask.start_timeout_s)
        # Both are asked in turn and never at once: each may have every core.
        self._places = (*self._launcher.place([ORIGINAL]), *self._launcher.place([RUNG]))
        self._folder = ask.folder / "models"
        self._written: Path | None = None
        """The file of the present rung, while one is kept."""

    @property
    def version(self) -> str:
        """See `LadderEngine`."""
        return f"{NAME}/{engine_version()}"

    @property
    def machine(self) -> str:
        """See `LadderEngine`."""
        return f"{platform.machine()}, {self._places[0].threads} threads an arm"

    async def original(self, say: Progress) -> OriginalArm:
        """Expand a quantized file to F16, the original from here on, and start it."""
        note = "the file as it was given"
        if self._shipped is not None:
            say("expanding to F16", 0.0)
            target = self._folder / "original-f16.gguf"
            groups = dict.fromkeys(quantized_groups(self._source), TensorKind.F16)
            await in_thread(_convert, Path(self._source.path), target, groups, frozenset())
            self._original = find_model(str(target))
            note = (
                f"the file came in {self._shipped}; its F16 expansion stands for the original, whose own precision is "
                "not known: what the first rounding cost is in both arms and not measured"
            )
        await asyncio.to_thread(check_weights, self._original.path)
        say("starting the original", 0.03)
        url = await self._launcher.start(_revision(self._original, ORIGINAL_KV), self._places[0])
        return OriginalArm(
            arm=QualityArm(ORIGINAL, url, self._session, LlamaCppScore()),
            source=self._source.path,
            sha256=self._source.sha256,
            path=self._original.path,
            note=note,
            vocabulary=check_model(self._original.path).vocabulary,
        )

    async def sensitivity(
        self, windows: Sequence[Window], scores: Sequence[TextScore], say: Progress
    ) -> Sensitivity:
        """See `LadderEngine`."""
        probes = Probes(
            source=Path(self._original.path),
            folder=self._folder,
            margin_nats=self._ask.margin_nats,
            say=say,
        )

        async def score(path: Path) -> tuple[TextScore, ...]:
            async with self._running(find_model(str(path)), ORIGINAL_KV) as arm:
                return await pair.scored(arm, windows)

        return await sensitivity_of(probes, check_model(self._original.path), scores, score)

    def rungs(self, found: Sensitivity | None) -> tuple[Rung, ...]:
        """See `LadderEngine`."""
        lowered = None if found is None else found.lowered
        return llamacpp_ladder(lowered, kv_types=self._ask.kv_types, shipped=self._shipped)

    async def write(self, rung: Rung, found: Sensitivity | None) -> RungFacts:
        """Write the rung's file unless it is the original or what was given."""
        if rung.kinds and not rung.shipped:
            target = self._folder / f"rung-{_file_word(rung)}.gguf"
            if self._written != target:
                keep = frozenset() if found is None else found.kept_tensors
                await self._convert_rung(rung, target, keep)
                self._written = target
        return self._facts(rung)

    async def _convert_rung(self, rung: Rung, target: Path, keep: frozenset[str]) -> None:
        try:
            await in_thread(_convert, Path(self._original.path), target, rung.kinds, keep)
        except LaunchError as error:
            if isinstance(error.__cause__, GGUFError):
                raise RungError(f"{rung.label}: {error}") from error
            raise

    def _facts(self, rung: Rung) -> RungFacts:
        path = self._path(rung)
        header = check_model(str(path))
        values = header.kv_values_per_token
        return RungFacts(
            effective={group.value: counts for group, counts in kinds_by_group(header).items()},
            bits_per_weight=bits_per_weight(header),
            file_bytes=_size(path),
            kv_bytes_per_token=None if values is None else values * KV_BYTES[rung.kv_type],
        )

    def _path(self, rung: Rung) -> Path:
        if rung.shipped:
            return Path(self._source.path)
        if not rung.kinds:
            return Path(self._original.path)
        assert self._written is not None
        return self._written

    @asynccontextmanager
    async def started(self, rung: Rung) -> AsyncIterator[RungArm]:
        """See `LadderEngine`."""
        async with self._running(find_model(str(self._path(rung))), rung.kv_type) as arm:
            yield RungArm(arm, self._facts(rung))

    @asynccontextmanager
    async def _running(self, model: Model, kv_type: str) -> AsyncIterator[QualityArm]:
        url = await self._launcher.start(_revision(model, kv_type), self._places[1])
        try:
            yield QualityArm(RUNG, url, self._session, LlamaCppScore())
        finally:
            await self._launcher.stop(RUNG, grace_s=2.0)

    def resident_bytes(self) -> int | None:
        """See `LadderEngine`."""
        return self._launcher.memory_bytes(RUNG)

    def discard(self) -> None:
        """See `LadderEngine`."""
        if self._written is not None:
            self._written.unlink(missing_ok=True)
            self._written = None

    async def keep(self, rung: Rung) -> str:
        """See `LadderEngine`; where KV alone is lowered the original's own file serves."""
        if not rung.kinds:
            return self._original.path
        assert self._written is not None
        target = self._ask.folder / f"{Path(self._source.path).stem}.{_file_word(rung)}.gguf"
        # Beside the report, so on the same disk: the very file that was measured is moved.
        self._written.replace(target)
        self._written = None
        return str(target)

    def notes(self, results: Sequence[RungResult]) -> tuple[str, ...]:
        """See `LadderEngine`."""
        notes = [
            "this engine quantizes activations inside its kernels together with the weights: "
            "stages (a) and (b) move at once"
        ]
        if self._shipped is not None:
            notes.append(f"{self._shipped} as shipped is {EXACT}")
        return (*notes, *kv_note(results))

    async def close(self) -> None:
        """See `LadderEngine`; the expansion stays."""
        await self._launcher.close()
        await asyncio.to_thread(_clear, self._folder)


def _revision(model: Model, kv_type: str) -> Revision:
    return Revision(
        engine=NAME,
        engine_version=engine_version(),
        model=model,
        kv_type=kv_type,
        slots=SLOTS,
        context_tokens=CONTEXT_TOKENS,
    )


def _file_word(rung: Rung) -> str:
    return rung.name.replace(" ", "-").replace(",", "")


def _convert(
    source: Path, target: Path, kinds: dict[Group, TensorKind], keep: frozenset[str]
) -> None:
    free, need = shutil.disk_usage(_existing(target.parent)).free, SPARE_BYTES + _size(source)
    if free < need:
        raise LaunchError(
            f"{target.parent} has {free >> 20:,} MiB free and {need >> 20:,} are needed for a copy of {source}: "
            "choose another folder (--report)"
        )
    convert(source, target, kinds, keep=keep)


def _clear(folder: Path) -> None:
    """Remove what a walk wrote on its way, also if it was ended in the middle; the expansion stays."""
    for path in (*folder.glob("rung-*.gguf"), *folder.glob("probe-*.gguf")):
        path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
