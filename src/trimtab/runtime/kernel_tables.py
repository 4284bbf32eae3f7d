"""Step times out of measured kernel tables: the package `aiconfigurator-core` (the extra `[plan]`) behind our port.

What is known of the package, and kept away from callers: a backend object that is used twice answers with the previous
model's numbers, so the compiled engine of each configuration is asked directly; only its own version slots can be
queried, so the current one is taken and a note names it; an FP8 checkpoint implies an FP8 cache there unless told
otherwise; names it does not know would be looked up over the network, so they never get to it. Its own TTFT and TPOT
are not used: they leave out queueing and scheduling. Measured serving rows that it carries are not read.
"""

import importlib
import importlib.metadata
import importlib.util
import logging
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec

from trimtab.core.layout import EstimateSource, Layout
from trimtab.planning.kernel_port import NoTimes, Serving, StepTimes
from trimtab.runtime.kernel_cache import Compiled, CompiledCache
from trimtab.runtime.kernel_configs import ConfigFolders
from trimtab.runtime.kernel_names import (
    ENGINES,
    Widths,
    candidates,
    checkpoints_of,
    near_models,
    system_names,
    system_of,
    width_in,
)

_PACKAGE: Final = "aiconfigurator_core"
_SLOT: Final = "current"
_MODES: Final = ("SILICON", "HYBRID")
"""Measured kernels only; then measured ones with gaps filled from near ones by the package."""

_COLLECTIVES: Final = ("_ar", "dispatch", "p2p", "allreduce", "all_gather", "all2all", "combine")
_REFUSALS: Final = (
    RuntimeError,
    ValueError,
    KeyError,
    OSError,
    NotImplementedError,
    AssertionError,
)
"""What the package raises where it has no data; all of it means the same to us."""

_ATTENTIONS: Final = (None, "bfloat16")
"""How prompts attend: as the checkpoint implies; where that was not measured, in 16 bit."""

_PROBE: Final = (8, 1024)


class _Handle(msgspec.Struct, frozen=True, kw_only=True):
    """One compiled configuration, and what it was compiled for."""

    engine: Any
    widths: str
    mode: str
    version: str


class TableTimes:
    """Step times of one configuration; every answer is kept, as planning asks the same again and again."""

    def __init__(self, handle: _Handle, notes: tuple[str, ...]) -> None:
        self._engine = handle.engine
        self.source = EstimateSource.KERNEL_TABLES
        self.extended = handle.mode != _MODES[0]
        self.notes = notes
        self._known: dict[tuple[int, ...], float] = {}
        self._collectives: dict[tuple[int, int], float | None] = {}

    def decode_ms(self, batch: int, context_tokens: int) -> float:
        """Return one decode step of a batch at a context."""
        key = (1, batch, context_tokens)
        if key not in self._known:
            # The package puts the step at input plus half of the output.
            self._known[key] = self._engine.decode_step_latency(
                batch, max(1, context_tokens - 1), 2
            )
        return self._known[key]

    def communication_ms(self, batch: int, context_tokens: int) -> float | None:
        """Return the collectives' part of a decode step; None where the package lets it overlap with other work."""
        key = (batch, context_tokens)
        if key not in self._collectives:
            steps = self._engine.decode_step_per_op(batch, max(1, context_tokens - 1), 2)
            hidden = any("overlap" in name for name, *_ in steps)
            told = float(sum(ms for name, ms, *_ in steps if _is_collective(name)))
            self._collectives[key] = None if hidden else told
        return self._collectives[key]

    def prefill_ms(self, prompts: int, prompt_tokens: int, cached_tokens: int) -> float:
        """Return one step that computes whole prompts."""
        key = (2, prompts, prompt_tokens, cached_tokens)
        if key not in self._known:
            self._known[key] = self._engine.predict_prefill_latency(
                prompts, prompt_tokens, cached_tokens
            )
        return self._known[key]

    def beside_ms(
        self,
        chunk_tokens: int,
        prompt_tokens: int,
        cached_tokens: int,
        batch: int,
        context_tokens: int,
    ) -> float:
        """Return what a prompt's chunk adds to a step of decoding streams; never below 0."""
        key = (3, chunk_tokens, prompt_tokens, cached_tokens, batch, context_tokens)
        if key not in self._known:
            output = max(2, 2 * (context_tokens - prompt_tokens))
            mixed = self._engine.mixed_step_latency(
                chunk_tokens, batch, prompt_tokens, output, cached_tokens
            )
            self._known[key] = max(0.0, mixed - self.decode_ms(batch, context_tokens))
        return self._known[key]


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _is_collective(name: str) -> bool:
    return any(name.endswith(part) or f"{part}_" in name for part in _COLLECTIVES)


class PackageTables:
    """The kernel tables of the package. Loading the tables of a system and engine takes seconds, once in a process."""

    def __init__(self, cache: CompiledCache | None = None) -> None:
        """`cache`: compiled configurations of runs before; None keeps none."""
        self._cache = cache or CompiledCache(None)
        self._times: dict[tuple[Serving, Layout], StepTimes | NoTimes] = {}
        self._loaded: dict[tuple[str, str, str], Any] = {}
        self._folders = ConfigFolders()

    def times(self, serving: Serving, layout: Layout) -> StepTimes | NoTimes:
        """Return the step times of a layout (replicas do not matter), or why there are none."""
        key = (serving, msgspec.structs.replace(layout, replicas=1))
        if key not in self._times:
            self._times[key] = self._find(*key)
        return self._times[key]

    def _find(self, serving: Serving, layout: Layout) -> StepTimes | NoTimes:
        if importlib.util.find_spec(_PACKAGE) is None:
            return NoTimes(because="the extra [plan] with measured kernel tables is not installed")
        engine = ENGINES.get(serving.engine)
        if engine is None:
            return NoTimes(
                because=f"there are no tables for the engine {serving.engine.value}",
                nearest=tuple(ENGINES.values()),
            )
        system = system_of(serving.system)
        if system is None:
            return NoTimes(
                because=f"there are no tables for {serving.system}", nearest=system_names()
            )
        checkpoints = self._checkpoints(serving.model)
        if not checkpoints:
            near = near_models(serving.model, _carried())
            return NoTimes(
                because=f"there are no tables for the model {serving.model}", nearest=near
            )
        try:
            return self._first_with_data(serving, layout, engine, system, checkpoints)
        except _REFUSALS as error:  # an architecture that the package does not know
            return NoTimes(because=f"there are no tables for {serving.model}: {_line(error)}")

    def _checkpoints(self, model: str) -> tuple[str, ...]:
        """Return names that the package carries, or a folder; a path that is there is never taken for a name."""
        found = () if Path(model).exists() else checkpoints_of(model, _carried())
        if found:
            return found
        folder = self._folders.folder_of(model)
        return () if folder is None else (folder,)

    def _first_with_data(
        self, serving: Serving, layout: Layout, engine: str, system: str, checkpoints: tuple[str, ...]
    ) -> StepTimes | NoTimes:  # fmt: skip
        own = {name: _own_width(name) for name in checkpoints}
        wanted = candidates(
            checkpoints,
            own,
            precision=serving.precision or _stated(serving.model, checkpoints[0]),
            kv_bits=serving.kv_bits,
            system=system,
            dense=not _is_mixture(checkpoints[0]),
        )
        refused = ""
        for mode, widths, attention in product(_MODES, wanted, _ATTENTIONS):
            try:
                handle = self._compile(widths, layout, engine, system, mode, attention)
            except _REFUSALS as error:
                refused = refused or _line(error)
                continue
            return TableTimes(handle, _notes(serving, widths, handle))
        return NoTimes(because=f"the tables of {system} for {engine} do not hold it: {refused}")

    def _compile(
        self,
        widths: Widths,
        layout: Layout,
        engine: str,
        system: str,
        mode: str,
        attention: str | None,
    ) -> _Handle:
        """Compile one configuration; raises one of `_REFUSALS` where the tables lack a kernel of it."""
        # A folder's configuration may change under its name, so only those that the package carries are kept.
        kept = widths.model in _carried()
        key = f"{_version()} {system} {engine} {mode} {attention} {layout} {widths}"
        found = self._cache.get(key) if kept else None
        if found is None:
            found = self._build(widths, layout, engine, system, mode, attention)
            if kept:
                self._cache.put(key, found)
        compiled = _sdk().engine.EngineHandle(found.spec)
        batch, tokens = _PROBE
        compiled.decode_step_latency(batch, tokens, 2)
        compiled.predict_prefill_latency(1, tokens, 0)
        compiled.mixed_step_latency(tokens, batch, tokens, 2, 0)
        return _Handle(engine=compiled, widths=found.widths, mode=mode, version=found.version)

    def _build(
        self,
        widths: Widths,
        layout: Layout,
        engine: str,
        system: str,
        mode: str,
        attention: str | None,
    ) -> Compiled:
        tables = self._database(system, engine, mode)
        if tables is None:
            raise ValueError(f"no tables for {system} and {engine}")
        sdk = _sdk()
        config = _config(sdk, widths, layout, engine, system, attention)
        model = sdk.models.get_model(widths.model, config, engine)
        spec = sdk.engine.build_engine_spec_json(
            model,
            model_path=widths.model,
            system=system,
            backend=engine,
            backend_version=tables.version,
            kv_block_size=None,
            systems_path=None,
            nextn=0,
            database=tables,
        )
        return Compiled(
            spec=bytes(sdk.core.engine_spec_bincode_from_json(spec)),
            widths=_said(model.config),
            version=str(tables.version),
        )

    def _database(self, system: str, engine: str, mode: str) -> Any:
        key = (system, engine, mode)
        if key not in self._loaded:
            self._loaded[key] = _sdk().perf_database.get_database_view(
                system, engine, _SLOT, database_mode=mode
            )
        return self._loaded[key]


def _config(
    sdk: Any, widths: Widths, layout: Layout, engine: str, system: str, attention: str | None
) -> Any:
    experts = _is_mixture(widths.model)
    config = sdk.config_builders.build_model_config(
        tp_size=layout.tp,
        pp_size=layout.pp,
        attention_dp_size=layout.attention_dp,
        moe_tp_size=layout.moe_tp if experts else layout.tp * layout.attention_dp,
        moe_ep_size=layout.moe_ep if experts else 1,
        gemm_quant_mode=widths.gemm,
        moe_quant_mode=widths.moe,
        kvcache_quant_mode=widths.kv,
        fmha_quant_mode=attention,
    )
    sdk.helpers.resolve_nvfp4_for_system(config, system, widths.model, backend_name=engine)
    return config


def _notes(serving: Serving, widths: Widths, handle: _Handle) -> tuple[str, ...]:
    said = [
        f"step times from measured kernels ({_PACKAGE} for {ENGINES[serving.engine]} {handle.version}; {handle.widths})"
    ]
    if serving.engine_version and serving.engine_version != handle.version:
        said.append(
            f"engine {serving.engine_version} was asked for, tables are of {handle.version}"
        )
    if widths.note:
        said.append(widths.note)
    if handle.mode != _MODES[0]:
        said.append("some kernels have no measurement and were extended from near ones")
    return tuple(said)


def _said(config: Any) -> str:
    return (
        f"matrices {config.gemm_quant_mode.name}, experts {config.moe_quant_mode.name}, "
        f"KV {config.kvcache_quant_mode.name}"
    )


class _Sdk(msgspec.Struct, frozen=True):
    """The parts of the package that are used, imported once and late: they bring pandas."""

    core: Any
    common: Any
    config_builders: Any
    engine: Any
    helpers: Any
    models: Any
    perf_database: Any


@cache
def _sdk() -> _Sdk:
    logging.getLogger(_PACKAGE).setLevel(logging.CRITICAL)  # it warns of what our notes say
    names = ("common", "config_builders", "engine", "models.helpers", "models", "perf_database")
    parts = [importlib.import_module(f"{_PACKAGE}.sdk.{name}") for name in names]
    return _Sdk(importlib.import_module(_PACKAGE), *parts)


@cache
def _version() -> str:
    return importlib.metadata.version("aiconfigurator-core")


@cache
def _carried() -> tuple[str, ...]:
    return tuple(sorted(_sdk().common.DefaultHFModels))


def _stated(model: str, checkpoint: str) -> str:
    """The precision in a model's name where the checkpoint taken for it has another name."""
    if Path(model).exists():
        return ""
    same = model.rpartition("/")[2].lower() == checkpoint.rpartition("/")[2].lower()
    return "" if same else width_in(model)


@cache
def _own_width(name: str) -> str:
    return str(_sdk().helpers._get_model_info(name)["raw_config"].get("quant_algo") or "")


@cache
def _is_mixture(name: str) -> bool:
    return bool(_sdk().helpers.check_is_moe(name))
