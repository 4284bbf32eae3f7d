"""The parts of the package `aiconfigurator-core` that are used, and how: everything that knows its inside is here.

Its database objects are made directly: the way that it offers reads every description of every device first, to name a
version that is not asked for, and probes its tables twice for the order in which attention kernels are looked up. That
order depends on the package alone, so it comes with us (`kernel_lanes.json`, made by `scripts/make_kernel_lanes.py`);
for another version of the package it is probed. What it computes is untouched: its specifications stay the same.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.resources
import importlib.util
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from trimtab.core.layout import Layout
from trimtab.runtime.kernel_names import Widths

PACKAGE: Final = "aiconfigurator_core"
MODES: Final = ("SILICON", "HYBRID")
"""Measured kernels only; then measured ones with gaps filled from near ones by the package."""

REFUSALS: Final = (
    RuntimeError,
    ValueError,
    KeyError,
    OSError,
    NotImplementedError,
    AssertionError,
)
"""What the package raises where it has no data; all of it means the same to us."""

_OF_DEVICE: Final = "missing system flops: quant mode"
_OF_WIDTHS: Final = re.compile(
    rf"data missing for ContextKey \{{ fmha_quant: \"\w+\", kv_quant: \"\w+\" \}}|^{_OF_DEVICE}"
)
"""What it says where a device lacks a width, or latent attention of a prompt was not measured in it."""

_OF_EXPERTS: Final = "MoE data missing for MoeKey {"
"""What it says where no row of an expert's shape was measured in a width, dealt out over so many ranks."""

PROBE: Final = (8, 1024)
_FAR: Final = (4096, 1 << 20)
"""Streams or tokens of a chunk, and tokens of a context, as far as anything is asked for."""

_RANKS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Over how many ranks matrices are cut."""

EXCHANGES: Final = ("MoeDispatch",)
EXPERTS: Final = ("Moe",)
"""Kinds of operations of the package that are a mixture's."""

LANES_FILE: Final = "kernel_lanes.json"
_GROUPS: Final = ("group_a", "group_b")
_SLOT: Final = "current"

Density = dict[str, tuple[int, int]]
"""By name of an attention kernel: how many shapes and rows were measured of it."""


class Lanes(msgspec.Struct, frozen=True, kw_only=True):
    """What decides the order of attention kernels, by device, engine and version, for one version of the package.

    By table: measured in all versions that are read along, and in this one alone.
    """

    package: str
    shared: dict[str, dict[str, Density]]
    own: dict[str, dict[str, Density]]


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """One compiled configuration, and what for. `widths`: in words; `root`: of the excerpt that it asks, if any.

    `sends`: of a layout with stages, what those send; `engine` has that in it, `spec` has not.
    """

    engine: Any
    spec: str
    root: str | None
    widths: str
    mode: str
    version: str
    sends: Any = None


class _Sdk(msgspec.Struct, frozen=True):
    """Modules of the package, imported once and late, with what tables are cut with."""

    core: Any
    common: Any
    config_builders: Any
    engine: Any
    helpers: Any
    models: Any
    perf_database: Any


@cache
def sdk() -> _Sdk:
    """Import the package; raises ImportError where the extra is not installed."""
    logging.getLogger(PACKAGE).setLevel(logging.CRITICAL)  # it warns of what our notes say
    names = ("common", "config_builders", "engine", "models.helpers", "models", "perf_database")
    parts = [importlib.import_module(f"{PACKAGE}.sdk.{name}") for name in names]
    importlib.import_module(
        "pyarrow.parquet"
    )  # excerpts are written with it, by threads that would wait for it
    return _Sdk(importlib.import_module(PACKAGE), *parts)


@cache
def installed() -> bool:
    """Say whether the extra with the package is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


@cache
def version() -> str:
    """Return the version of the installed package."""
    return importlib.metadata.version("aiconfigurator-core")


@cache
def carried() -> tuple[str, ...]:
    """Return the models that the package carries a configuration for."""
    return tuple(sorted(sdk().common.DefaultHFModels))


@cache
def own_width(name: str) -> str:
    """Return the precision in which a checkpoint stores its weights, in the package's words."""
    return str(sdk().helpers._get_model_info(name)["raw_config"].get("quant_algo") or "")


@cache
def is_mixture(name: str) -> bool:
    """Say whether a checkpoint has experts."""
    return bool(sdk().helpers.check_is_moe(name))


def names_widths_alone(refusal: str) -> bool:
    """Say whether a refusal names nothing but widths, so that every layout of a model in these widths meets it."""
    return _OF_WIDTHS.search(refusal) is not None


def names_device_alone(refusal: str) -> bool:
    """Say whether a refusal is of a width that the device itself lacks, whatever tables are asked and how."""
    return refusal.startswith(_OF_DEVICE)


def names_experts_alone(refusal: str) -> bool:
    """Say whether a refusal is of experts that nobody measured; an excerpt has all rows of their shapes and widths."""
    return _OF_EXPERTS in refusal


def slot_version(system: str, engine: str) -> str | None:
    """Return the version of an engine whose tables of a device can be queried; None where there are no such tables."""
    database = sdk().perf_database
    root = database.get_systems_paths()[0]
    slots = database._load_query_slots_doc((root,)) or {}
    entry = slots.get("overrides", {}).get(system, {}).get(engine) or slots["defaults"].get(engine)
    found = None if entry is None else entry.get(_SLOT)
    if not found or not any(Path(root, "data", system).glob(f"*/{engine}/{found}")):
        return None
    return str(found)


def open_tables(system: str, engine: str, mode: str) -> Any:
    """Return the package's database of a device and engine, of which nothing is loaded; None where there is none."""
    found = slot_version(system, engine)
    if found is None:
        return None
    module = sdk().perf_database
    opened = module.PerfDatabase(
        system, engine, found, module.get_systems_paths()[0], database_mode=mode
    )
    opened.set_default_database_mode(sdk().common.DatabaseMode[mode])
    lanes, key = _lanes(), f"{system} {engine} {found}"
    if lanes.package == version() and key in lanes.shared:
        known = {(name, True): dict(told) for name, told in lanes.shared[key].items()}
        known |= {(name, False): dict(told) for name, told in lanes.own[key].items()}
        generation = sdk().engine._PROBE_CACHE_GENERATION
        opened.__dict__["_attention_lane_density_cache"] = (generation, known)
    return opened


def package_root() -> Path:
    """Return the folder of the package's tables."""
    return Path(sdk().perf_database.get_systems_paths()[0])


def held(tables: Any, root: str | None) -> Any:
    """Return something that keeps what is read of a database; the package drops it with the last that needs it."""
    return compiled(sdk().engine.build_database_probe_spec_json(tables), root)


@cache
def _lanes() -> Lanes:
    text = importlib.resources.files("trimtab.runtime").joinpath(LANES_FILE).read_bytes()
    return msgspec.json.decode(text, type=Lanes)


def compile_layout(
    widths: Widths, layout: Layout, engine: str, system: str, tables: Any, attention: str | None,
    root_of: Callable[[str], str | None],
) -> Compiled:  # fmt: skip
    """Compile one configuration and load what its steps need; raises one of `REFUSALS` where a kernel is lacking.

    `root_of`: where the tables lie that a specification is to be asked of; None: the package's own.
    """
    config, spec = specified(widths, layout, engine, system, tables, attention)
    root = root_of(spec)
    whole = compiled(spec, root)
    for batch, tokens in (PROBE, _FAR):
        whole.decode_step_latency(batch, tokens, 2)
        whole.predict_prefill_latency(1, tokens, 0)
        whole.mixed_step_latency(min(batch, tokens), batch, tokens, 2, 0)
    return Compiled(
        engine=whole,
        spec=spec,
        root=root,
        widths=_said(config),
        mode=str(tables.get_default_database_mode().name),
        version=str(tables.version),
    )


def specs_of_sizes(
    widths: Widths, engine: str, system: str, tables: Any, attention: str | None
) -> Iterator[str]:
    """Yield the specifications of a model cut over each usual number of ranks that the package has one for."""
    for ranks in _RANKS:
        with contextlib.suppress(*REFUSALS):
            layout = Layout(tp=ranks, moe_tp=ranks)
            yield specified(widths, layout, engine, system, tables, attention)[1]


def specified(
    widths: Widths, layout: Layout, engine: str, system: str, tables: Any, attention: str | None
) -> tuple[Any, str]:
    """Return the package's configuration and specification of a layout; raises one of `REFUSALS`."""
    config = _config(widths, layout, engine, system, attention)
    model = sdk().models.get_model(widths.model, config, engine)
    spec = sdk().engine.build_engine_spec_json(
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
    return model.config, str(spec)


def compiled(spec: str, root: str | None) -> Any:
    """Return the package's engine of a specification, asked of the tables under `root`; None: the package's own."""
    return sdk().core.AicEngine.from_spec(
        bytes(sdk().core.engine_spec_bincode_from_json(spec)), root
    )


def _config(widths: Widths, layout: Layout, engine: str, system: str, attention: str | None) -> Any:
    experts = is_mixture(widths.model)
    config = sdk().config_builders.build_model_config(
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
    sdk().helpers.resolve_nvfp4_for_system(config, system, widths.model, backend_name=engine)
    return config


def _said(config: Any) -> str:
    return (
        f"matrices {config.gemm_quant_mode.name}, experts {config.moe_quant_mode.name}, "
        f"KV {config.kvcache_quant_mode.name}"
    )


def overlaps(spec: str) -> bool:
    """Say whether operations of a specification run beside others, so that their times do not add up."""
    whole = msgspec.json.decode(spec)
    return any(
        any(group in facts for group in _GROUPS)
        for phase in ("context_ops", "generation_ops")
        for operation in whole[phase]
        for facts in operation.values()
    )


def without(spec: str, kinds: tuple[str, ...]) -> str:
    """Return a specification without operations of some kinds."""
    return _changed(spec, kinds, keep=False)


def only(spec: str, kinds: tuple[str, ...]) -> str:
    """Return a specification with operations of some kinds alone; they may not be in groups that overlap."""
    return _changed(spec, kinds, keep=True)


def _changed(spec: str, kinds: tuple[str, ...], *, keep: bool) -> str:
    whole = msgspec.json.decode(spec)
    for phase in ("context_ops", "generation_ops"):
        whole[phase] = _left(whole[phase], kinds, keep=keep)
    return msgspec.json.encode(whole).decode()


def _left(
    operations: list[Mapping[str, dict[str, Any]]], kinds: tuple[str, ...], *, keep: bool
) -> list[dict[str, Any]]:
    found = []
    for operation in operations:
        ((kind, facts),) = operation.items()
        if (kind in kinds) is not keep:
            continue
        groups = {name: _left(facts[name], kinds, keep=keep) for name in _GROUPS if name in facts}
        found.append({kind: facts | groups})
    return found
