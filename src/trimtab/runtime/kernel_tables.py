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

import trimtab
from trimtab.core.layout import EstimateSource, Layout
from trimtab.planning.grid_times import GridTimes, sample
from trimtab.planning.kernel_port import NoTimes, Parted, Serving, StepTimes
from trimtab.runtime.kernel_cache import GridCache, Kept
from trimtab.runtime.kernel_configs import ConfigFolders, config_digest
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
_EXPERTS: Final = ("Moe",)
_EXCHANGES: Final = ("MoeDispatch",)
"""Kinds of operations of the package that are a mixture's."""


class _Handle(msgspec.Struct, frozen=True, kw_only=True):
    """One compiled configuration or those without some of its parts, and what it was compiled for."""

    engines: tuple[Any, ...]
    whole: bool
    widths: str
    mode: str
    version: str


class _Asked:
    """Asks one compiled configuration for the points of a grid."""

    def __init__(self, engine: Any, *, exchanges: bool = True) -> None:
        """`exchanges`: experts' tokens are exchanged in its steps."""
        self._engine = engine
        self._exchanges = exchanges

    def decode_ms(self, batch: int, context_tokens: int) -> float:
        # The package puts the step at input plus half of the output.
        return float(self._engine.decode_step_latency(batch, max(1, context_tokens - 1), 2))

    def collectives_ms(self, batch: int) -> float | None:
        """None where the package lets an exchange overlap with other work."""
        steps = self._engine.decode_step_per_op(batch, _PROBE[1], 2)
        if any("overlap" in name and self._exchanges for name, *_ in steps):
            return None
        return float(sum(ms for name, ms, *_ in steps if _is_collective(name)))

    def prefill_ms(self, prompt_tokens: int, cached_tokens: int) -> float:
        return float(self._engine.predict_prefill_latency(1, prompt_tokens, cached_tokens))

    def beside_ms(
        self, chunk_tokens: int, prompt_tokens: int, cached_tokens: int, batch: int
    ) -> float:
        mixed = self._engine.mixed_step_latency(
            chunk_tokens, batch, prompt_tokens, 2, cached_tokens
        )
        return max(0.0, float(mixed) - self.decode_ms(batch, prompt_tokens + 1))


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _is_collective(name: str) -> bool:
    return any(name.endswith(part) or f"{part}_" in name for part in _COLLECTIVES)


class PackageTables:
    """The kernel tables of the package. Asking them first takes seconds; what they said is kept, which takes none."""

    def __init__(self, cache: GridCache | None = None) -> None:
        """`cache`: times of runs before; None keeps none."""
        self._cache = cache or GridCache(None)
        self._times: dict[tuple[Serving, Layout, bool], tuple[GridTimes, ...] | NoTimes] = {}
        self._loaded: dict[tuple[str, str, str], Any] = {}
        # The package drops what it read with the last configuration that needs it, and would read it again.
        self._holding: dict[tuple[str, str, str], Any] = {}
        self._folders = ConfigFolders()

    def times(self, serving: Serving, layout: Layout) -> StepTimes | NoTimes:
        """Return the step times of a layout (replicas do not matter), or why there are none."""
        found = self._kept(serving, layout, parts=False)
        return found if isinstance(found, NoTimes) else found[0]

    def parted(self, serving: Serving, layout: Layout) -> Parted | NoTimes:
        """Return a mixture's step times with those of its parts, or why there are none."""
        whole, parts = (self._kept(serving, layout, parts=each) for each in (False, True))
        if isinstance(whole, NoTimes):
            return whole
        if isinstance(parts, NoTimes):
            return parts
        return Parted(whole=whole[0], no_exchange=parts[0], no_experts=parts[1])

    def _kept(
        self, serving: Serving, layout: Layout, *, parts: bool
    ) -> tuple[GridTimes, ...] | NoTimes:
        key = (serving, msgspec.structs.replace(layout, replicas=1), parts)
        if key not in self._times:
            self._times[key] = self._looked_up(*key)
        return self._times[key]

    def _looked_up(
        self, serving: Serving, layout: Layout, parts: bool
    ) -> tuple[GridTimes, ...] | NoTimes:
        if importlib.util.find_spec(_PACKAGE) is None:
            return NoTimes(because="the extra [plan] with measured kernel tables is not installed")
        digest = config_digest(serving.model)
        name = f"{_version()} {trimtab.__version__} {serving} {layout} {parts} {digest}"
        kept = self._cache.get(name)
        found = None if kept is None else _times_of(kept)
        if found is None:
            kept = self._find(serving, layout, parts)
            self._cache.put(name, kept)
            found = _times_of(kept)
        assert found is not None
        return found

    def _find(self, serving: Serving, layout: Layout, parts: bool) -> Kept | NoTimes:
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
            return self._first_with_data(serving, layout, engine, system, checkpoints, parts)
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
        self, serving: Serving, layout: Layout, engine: str, system: str, checkpoints: tuple[str, ...],
        parts: bool,
    ) -> Kept | NoTimes:  # fmt: skip
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
                handle = self._compile(widths, layout, engine, system, mode, attention, parts)
                return _kept_of(handle, _notes(serving, widths, handle))
            except _REFUSALS as error:
                refused = refused or _line(error)
        return NoTimes(because=f"the tables of {system} for {engine} do not hold it: {refused}")

    def _compile(
        self,
        widths: Widths,
        layout: Layout,
        engine: str,
        system: str,
        mode: str,
        attention: str | None,
        parts: bool,
    ) -> _Handle:
        """Compile one configuration; raises one of `_REFUSALS` where the tables lack a kernel of it."""
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
        whole = _compiled(spec)
        self._holding.setdefault((system, engine, mode), whole)
        batch, tokens = _PROBE
        whole.decode_step_latency(batch, tokens, 2)
        whole.predict_prefill_latency(1, tokens, 0)
        whole.mixed_step_latency(tokens, batch, tokens, 2, 0)
        taken = (_EXCHANGES, (*_EXCHANGES, *_EXPERTS)) if parts else ()
        return _Handle(
            engines=tuple(_compiled(_without(spec, kinds)) for kinds in taken) or (whole,),
            whole=not parts,
            widths=_said(model.config),
            mode=mode,
            version=str(tables.version),
        )

    def _database(self, system: str, engine: str, mode: str) -> Any:
        key = (system, engine, mode)
        if key not in self._loaded:
            self._loaded[key] = _sdk().perf_database.get_database_view(
                system, engine, _SLOT, database_mode=mode
            )
        return self._loaded[key]


def _compiled(spec: str) -> Any:
    sdk = _sdk()
    return sdk.engine.EngineHandle(bytes(sdk.core.engine_spec_bincode_from_json(spec)))


def _without(spec: str, kinds: tuple[str, ...]) -> str:
    """Return a specification without operations of some kinds."""
    whole = msgspec.json.decode(spec)
    for phase in ("context_ops", "generation_ops"):
        whole[phase] = _left(whole[phase], kinds)
    return msgspec.json.encode(whole).decode()


def _left(operations: list[dict[str, Any]], kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    found = []
    for operation in operations:
        ((kind, facts),) = operation.items()
        if kind in kinds:
            continue
        groups = {
            name: _left(facts[name], kinds) for name in ("group_a", "group_b") if name in facts
        }
        found.append({kind: facts | groups})
    return found


def _kept_of(handle: _Handle, notes: tuple[str, ...]) -> Kept:
    """Ask for the whole grid of a configuration, or of those without some of its parts."""
    return Kept(
        notes=notes,
        extended=handle.mode != _MODES[0],
        grids=tuple(sample(_Asked(each, exchanges=handle.whole)) for each in handle.engines),
    )


def _times_of(kept: Kept | NoTimes) -> tuple[GridTimes, ...] | NoTimes | None:
    """Return kept times as times; None where they are of another grid."""
    if isinstance(kept, NoTimes):
        return kept
    source, notes, extended = EstimateSource.KERNEL_TABLES, kept.notes, kept.extended
    try:
        return tuple(GridTimes(grid, source, notes, extended=extended) for grid in kept.grids)
    except ValueError:
        return None


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
