"""vLLM's side of a walk over precisions: checkpoints written for it, servers started on this machine's CPUs.

A start takes most of a minute, so that everything whose weights have the original's shapes and types (the original
once more, what was rounded in place, the probes of sensitivity) runs on one server that loads other weights while it
stands. What a rung really runs is read back from its server: the scheme of every layer, the KV type, the bytes of KV.
"""

import asyncio
import contextlib
import platform
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from trimtab.core.ports import Clock, EngineFormatError, LaunchError
from trimtab.engines.compressed_tensors import (
    CheckpointPlan,
    Scheme,
    check_ignore,
    modules_of,
    place_of_weight,
    plan_checkpoint,
    recipe_of,
)
from trimtab.engines.gguf_tensors import LINEAR, Group
from trimtab.engines.vllm import NAME, VERSION, VllmLaunch
from trimtab.engines.vllm_checks import Refusal
from trimtab.engines.vllm_inspection import not_effective
from trimtab.engines.vllm_score import VllmScore
from trimtab.quality.ladder import ORIGINAL_KV_VLLM, Rung, RungResult
from trimtab.quality.ladder_vllm import vllm_ladder
from trimtab.quality.loss import TextScore
from trimtab.quality.rung_results import RungFacts, kv_note
from trimtab.quality.sensitivity import Sensitivity, TensorSpread
from trimtab.runtime import quality_pair as pair
from trimtab.runtime.checkpoints import (
    Checkpoint,
    check_finite,
    checkpoint_sha256,
    open_checkpoint,
    types_by_group,
    weights_in,
    write_checkpoint,
    written_tensors,
)
from trimtab.runtime.quality_arm import QualityArm, Window
from trimtab.runtime.quantize_ask import QuantizeAsk
from trimtab.runtime.quantize_engine import OriginalArm, Progress, RungArm, RungError
from trimtab.runtime.quantize_original import CONTEXT_TOKENS, CONTEXT_TOKENS_VLLM
from trimtab.runtime.quantize_sensitivity import PROBED, probed, spread_of
from trimtab.runtime.to_end import in_thread
from trimtab.runtime.vllm_env import SMOLLM2, find_environment
from trimtab.runtime.vllm_inside import VllmInside
from trimtab.runtime.vllm_launcher import Running, VllmLauncher

ORIGINAL: Final = "original"
RUNG: Final = "rung"
SERVED_NAME: Final = "default"
STREAMS: Final = 8
"""Whole contexts that fit an arm's KV cache at the original's precision."""
START_TIMEOUT_S: Final = 400.0


class VllmLadder:
    """Implements `LadderEngine`; use it once. Raises `LaunchError` for a checkpoint that cannot be walked."""

    def __init__(self, ask: QuantizeAsk, session: aiohttp.ClientSession, clock: Clock) -> None:
        self._ask = ask
        self._session = session
        environment = find_environment()
        self._packaged = ask.model in ("", SMOLLM2)
        self._checkpoint = open_checkpoint(environment.model(ask.model or SMOLLM2))
        try:
            check_ignore(ask.ignore, modules_of(self._checkpoint.tensors))
        except EngineFormatError as error:
            raise LaunchError(f"{self._checkpoint.folder}: {error}") from error
        self._launcher = VllmLauncher(
            clock=clock,
            environment=environment,
            start_timeout_s=max(ask.start_timeout_s, START_TIMEOUT_S),
        )
        self._folder = ask.folder.resolve() / "models"
        self._written: tuple[Path, CheckpointPlan] | None = None
        self._plain: Running | None = None
        """The server that takes any weights of the original's shapes and types, while it runs."""

    @property
    def version(self) -> str:
        """See `LadderEngine`."""
        return f"{NAME}/{VERSION}"

    @property
    def machine(self) -> str:
        """See `LadderEngine`."""
        return f"{platform.machine()}, both arms on all CPUs, never busy at once"

    async def original(self, say: Progress) -> OriginalArm:
        """Check the checkpoint whole and start it."""
        say("reading the checkpoint", 0.0)
        await asyncio.to_thread(check_finite, self._checkpoint)
        digest = await asyncio.to_thread(checkpoint_sha256, self._checkpoint)
        say("starting the original", 0.01)
        folder = self._checkpoint.folder
        running = await self._both(folder)
        effective = await VllmInside(running.url, self._session).layers()
        if wrong := (*running.differences, *not_effective(None, effective)):
            raise LaunchError(f"the original does not run as asked: {'; '.join(wrong)}")
        return OriginalArm(
            arm=QualityArm(ORIGINAL, running.url, self._session, VllmScore()),
            source=str(folder),
            sha256=digest,
            path=str(folder),
            note=self._note(),
            vocabulary=self._checkpoint.config.get("vocab_size"),
        )

    async def _both(self, folder: Path) -> Running:
        """Start the original, and beside it the server for other weights, which a walk from its begin needs at once.

        A start is a chain of processes that import one after the other, so that two take little longer than one.
        """
        if self._ask.resume:
            return await self._launched(ORIGINAL, folder, ORIGINAL_KV_VLLM)
        try:
            async with asyncio.TaskGroup() as group:
                first = group.create_task(self._launched(ORIGINAL, folder, ORIGINAL_KV_VLLM))
                second = group.create_task(self._launched(RUNG, folder, ORIGINAL_KV_VLLM))
        except ExceptionGroup as errors:
            # The other start was ended because one failed.
            raise errors.exceptions[0] from None
        self._plain = second.result()
        return first.result()

    def _note(self) -> str:
        if not self._packaged:
            return "the checkpoint as it was given"
        return (
            "the checkpoint was expanded from a GGUF in Q4_1; it stands for the original, whose own precision is not "
            "known: what the first rounding cost is in both arms and not measured"
        )

    async def sensitivity(
        self, windows: Sequence[Window], scores: Sequence[TextScore], say: Progress
    ) -> Sensitivity:
        """Round each group alone to int4 and back, on the server that loads other weights while it stands."""
        plans = self._probe_plans()
        values: dict[Group, int] = {}
        for tensor in self._checkpoint.tensors:
            group = place_of_weight(tensor.name).group
            if group in plans:
                values[group] = values.get(group, 0) + tensor.values

        async def lowered(group: Group) -> tuple[TextScore, ...]:
            folder = self._folder / f"probe-{group.value}"
            try:
                await in_thread(write_checkpoint, self._checkpoint, folder, plans[group])
                return await pair.scored(self._arm(await self._plain_with(folder)), windows)
            finally:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

        return await probed(
            {group: values[group] for group in PROBED if group in values},
            scores,
            lowered,
            self._spreads,
            probe=Scheme.ROUNDED_INT4.value,
            margin_nats=self._ask.margin_nats,
            say=say,
        )

    def _probe_plans(self) -> dict[Group, CheckpointPlan]:
        """Return what to write for each group that can be rounded; one of which no layer can stays as it is."""
        plans: dict[Group, CheckpointPlan] = {}
        for group in PROBED:
            with contextlib.suppress(EngineFormatError):
                plans[group] = plan_checkpoint(
                    self._checkpoint.tensors, Scheme.ROUNDED_INT4, (group,)
                )
        return plans

    def _spreads(self) -> tuple[TensorSpread, ...]:
        places = {one.name: place_of_weight(one.name) for one in self._checkpoint.tensors}
        linear = frozenset(name for name, place in places.items() if place.group in LINEAR)
        return tuple(
            spread_of(name, places[name], values)
            for name, values in weights_in(self._checkpoint, linear)
        )

    def rungs(self, found: Sensitivity | None) -> tuple[Rung, ...]:
        """See `LadderEngine`."""
        lowered = None if found is None else found.lowered
        return vllm_ladder(lowered, kv_types=self._ask.kv_types, kv_binds=self._ask.kv_binds)

    async def write(self, rung: Rung, found: Sensitivity | None) -> RungFacts:
        """Write the rung's folder unless it is the original, and its recipe beside the report."""
        if rung.scheme is None:
            tensors = self._checkpoint.tensors
        else:
            target = self._folder / f"rung-{_folder_word(rung)}"
            if self._written is None or self._written[0] != target:
                plan = self._plan(rung.scheme, rung, found)
                await in_thread(write_checkpoint, self._checkpoint, target, plan)
                recipes = self._ask.folder / "recipes"
                recipes.mkdir(parents=True, exist_ok=True)
                (recipes / f"{_folder_word(rung)}.yaml").write_text(recipe_of(plan), "utf-8")
                self._written = (target, plan)
            tensors = written_tensors(target)
        size = sum(tensor.size for tensor in tensors)
        values = sum(tensor.values for tensor in self._checkpoint.tensors)
        return RungFacts(
            effective=types_by_group(tensors),
            bits_per_weight=8.0 * size / values,
            file_bytes=size,
            kv_bytes_per_token=None,
        )

    def _plan(self, scheme: Scheme, rung: Rung, found: Sensitivity | None) -> CheckpointPlan:
        keep = frozenset() if found is None else found.kept_tensors
        try:
            return plan_checkpoint(
                self._checkpoint.tensors, scheme, rung.lowered, keep=keep, ignore=self._ask.ignore
            )
        except EngineFormatError as error:
            raise RungError(f"{rung.label}: {error}") from error

    @asynccontextmanager
    async def started(self, rung: Rung) -> AsyncIterator[RungArm]:
        """Start the rung, or load its weights where they have the original's shapes; it must run as it was planned."""
        folder, plan = self._checkpoint.folder, None
        if rung.scheme is not None:
            assert self._written is not None
            folder, plan = self._written
        if not rung.lowers_kv and (plan is None or plan.scheme.is_rounded):
            running = await self._plain_with(folder)
        else:
            await self._end_rung()
            running = await self._launched(RUNG, folder, rung.kv_type)
        try:
            facts = await self._read_back(rung, plan, running)
            yield RungArm(self._arm(running), facts)
        finally:
            if running is not self._plain:
                await self._end_rung()

    async def _read_back(
        self, rung: Rung, plan: CheckpointPlan | None, running: Running
    ) -> RungFacts:
        effective = await VllmInside(running.url, self._session).layers()
        wrong = [*running.differences, *not_effective(plan, effective)]
        facts = await self.write(rung, None)
        kv_bytes = _kv_bytes_per_token(running)
        plain = _kv_bytes_per_token(self._launcher.running(ORIGINAL))
        if rung.lowers_kv and kv_bytes is not None and plain is not None and kv_bytes >= plain:
            wrong.append(f"KV {rung.kv_type}: {kv_bytes:,.0f} bytes a token, {plain:,.0f} before")
        if wrong:
            raise LaunchError(f"requested is not effective: {'; '.join(wrong)}")
        return RungFacts(
            effective={**effective, "kv": {running.report.settings.get("kv_dtype", "unknown"): 1}},
            bits_per_weight=facts.bits_per_weight,
            file_bytes=facts.file_bytes,
            kv_bytes_per_token=kv_bytes,
        )

    async def _plain_with(self, folder: Path) -> Running:
        """Return the server that takes other weights while it stands, with those of a folder."""
        if self._plain is None:
            await self._end_rung()
            self._plain = await self._launched(RUNG, self._checkpoint.folder, ORIGINAL_KV_VLLM)
        await VllmInside(self._plain.url, self._session).load(folder)
        return self._plain

    async def _launched(self, name: str, folder: Path, kv_type: str) -> Running:
        launch = VllmLaunch(
            model=str(folder),
            served_name=SERVED_NAME,
            port=0,
            context_tokens=CONTEXT_TOKENS_VLLM,
            kv_cache_bytes=_kv_cache_bytes(self._checkpoint),
            kv_dtype=kv_type,
            developer_endpoints=True,
        )
        # A KV type that is known to be garbage is measured all the same: a version may have mended it.
        return await self._launcher.start(launch, name=name, allowed=frozenset({Refusal.KV_TYPE}))

    async def _end_rung(self) -> None:
        self._plain = None
        await self._launcher.stop(RUNG, grace_s=5.0)

    def _arm(self, running: Running) -> QualityArm:
        return QualityArm(RUNG, running.url, self._session, VllmScore())

    def resident_bytes(self) -> int | None:
        """See `LadderEngine`: of all processes of the server, shared pages split."""
        found = self._launcher.memory(RUNG)
        return sum(one.proportional_bytes or one.resident_bytes for one in found) or None

    def discard(self) -> None:
        """See `LadderEngine`."""
        if self._written is not None:
            shutil.rmtree(self._written[0], ignore_errors=True)
            self._written = None

    async def keep(self, rung: Rung) -> str:
        """See `LadderEngine`; where KV alone is lowered the original's own folder serves."""
        if self._written is None or rung.scheme is None:
            return str(self._checkpoint.folder)
        target = self._ask.folder / f"{self._checkpoint.folder.name}.{_folder_word(rung)}"
        if target.exists():
            await asyncio.to_thread(shutil.rmtree, target)
        self._written[0].replace(target)
        self._written = None
        return str(target)

    def notes(self, results: Sequence[RungResult]) -> tuple[str, ...]:
        """See `LadderEngine`."""
        notes = [
            "rungs that are rounded in place answer for quality alone: they run in the original's own precision",
            "recipes/ has the recipe of every rung that was written, for llm-compressor on a machine with a GPU",
        ]
        return (*notes, *kv_note(results))

    async def close(self) -> None:
        """See `LadderEngine`."""
        await self._launcher.close()
        for path in (*self._folder.glob("rung-*"), *self._folder.glob("probe-*")):
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)


def _kv_cache_bytes(checkpoint: Checkpoint) -> int:
    """Return the KV cache of an arm: whole contexts of some streams at two bytes a value, 256 MiB at least."""
    config = checkpoint.config
    heads = int(config.get("num_attention_heads") or 1)
    width = int(config.get("head_dim") or int(config.get("hidden_size") or 0) // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    values = 2 * int(config.get("num_hidden_layers") or 0) * kv_heads * width
    return max(256 << 20, 2 * values * STREAMS * CONTEXT_TOKENS)


def _kv_bytes_per_token(running: Running | None) -> float | None:
    if running is None or running.launch is None or not running.report.kv_tokens:
        return None
    # What was set aside is exact; the log rounds it.
    return running.launch.kv_cache_bytes / running.report.kv_tokens


def _folder_word(rung: Rung) -> str:
    return rung.name.replace(" ", "-").replace("+", "-")
