"""Turns the words of `trimtab plan`'s command line into what a plan is asked; every error names its option."""

import re
from pathlib import Path
from typing import Final

import msgspec

from trimtab.core.accelerators import ACCELERATORS
from trimtab.core.layout import Cluster, Demand, Link, PlanInputError, Targets
from trimtab.core.links import LINKS, find_link, usual_link
from trimtab.core.nearest import nearest_names
from trimtab.core.served import Accelerator, EngineKind, ModelShape
from trimtab.engines.model_names import find_model_shape, known_names
from trimtab.planning.layouts import Sizes
from trimtab.planning.measured import Group
from trimtab.planning.plan_ask import Ask, find_exchange
from trimtab.planning.plan_ports import Estimator
from trimtab.planning.precision import find_kv_bits, with_precision
from trimtab.runtime.plan_estimator import build_estimator
from trimtab.runtime.served_known import LOCAL_CPU, find_hardware, read_model
from trimtab.runtime.served_sources import SourceError
from trimtab.workloads.base import WorkloadError
from trimtab.workloads.trace_files import (
    AZURE_BLOCK_TOKENS,
    MOONCAKE_BLOCK_TOKENS,
    azure_records,
    mooncake_records,
)
from trimtab.workloads.trace_load import TraceLoad, load_of_trace

ENGINES: Final = {
    "vllm": EngineKind.VLLM,
    "sglang": EngineKind.SGLANG,
    "trtllm": EngineKind.TRTLLM,
}
_HARDWARE: Final = re.compile(r"(?P<name>[^:]+)(?::(?P<count>\d+)(?:x(?P<nodes>\d+))?)?")
NODE_DEVICES: Final = 8
OF_TRACE: Final = "trace"
"""The prefix share that means what the trace's prompts repeat."""

NARROW: Final = ("fp8", "fp4")
NARROW_KV_BITS: Final = 8
_NETWORKS: Final = ("InfiniBand", "RoCE", "Ethernet")


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """The options as they were given; None where one was not."""

    model: str
    hardware: str
    link: str | None = None
    node_link: str | None = None
    isl: int | None = None
    osl: int | None = None
    context: int | None = None
    concurrency: float | None = None
    rate: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    prefix_share: str | None = None
    draft_tokens: int = 0
    draft_acceptance: float | None = None
    precision: str | None = None
    kv_precision: str | None = None
    price: float | None = None
    expert_skew: float | None = None
    collective: str | None = None
    engine: str = "vllm"
    trace: Path | None = None
    measured: tuple[str, ...] = ()
    sizes: Sizes = Sizes()


def ask_of(words: Words, trace: TraceLoad | None) -> Ask:
    """Return what is asked; raises `PlanInputError` that names the option, `SourceError` for files."""
    accelerator, devices, nodes = hardware_of(words.hardware)
    return Ask(
        model=model_of(words.model, words.precision),
        accelerator=accelerator,
        cluster=cluster_of(words, accelerator, devices, nodes),
        demand=demand_of(words, trace),
        targets=Targets(ttft_ms=words.ttft_ms, tpot_ms=words.tpot_ms),
        sizes=words.sizes,
        exchange=None if words.collective is None else find_exchange(words.collective),
        expert_skew=words.expert_skew,
        price_per_h=words.price,
    )


def hardware_of(text: str) -> tuple[Accelerator, int, int]:
    """Read NAME[:COUNT[xNODES]]; raises `PlanInputError` on the field `hardware`."""
    found = _HARDWARE.fullmatch(text.strip())
    if found is None:
        raise PlanInputError(
            "hardware", f"{text!r} is not NAME[:COUNT[xNODES]]", ("H100:8", "H100:8x2")
        )
    name = found["name"].strip()
    devices, nodes = int(found["count"] or 1), int(found["nodes"] or 1)
    for word, count in (("COUNT", devices), ("NODES", nodes)):
        if count < 1:
            raise PlanInputError("hardware", f"{word} is {count} in {text!r}", ("1",))
    try:
        return find_hardware(name), devices, nodes
    except SourceError as error:
        whole = [LOCAL_CPU, *(each.name for each in ACCELERATORS)]
        # "H100" is enough for a name, and nearer to what is mistyped than "H100 SXM".
        short = [each for each in dict.fromkeys(name.split()[0] for name in whole) if each != "RTX"]
        near = nearest_names(name, short) or nearest_names(name, whole) or tuple(whole)
        raise PlanInputError("hardware", f"no accelerator {name!r} is known", near) from error


def model_of(text: str, precision: str | None) -> ModelShape:
    """Return a model at the precisions asked for; raises `PlanInputError`, `SourceError`."""
    if not Path(text).exists() and find_model_shape(text) is None:
        near = nearest_names(text, known_names()) or tuple(known_names())
        what = f"{text!r} is no file and no known model (none is fetched; a config.json or its folder also tells)"
        raise PlanInputError("model", what, near)
    shape = read_model(text)
    return shape if precision is None else with_precision(shape, precision)


def cluster_of(words: Words, accelerator: Accelerator, devices: int, nodes: int) -> Cluster:
    """Return the devices with their links; a network named as the link of several nodes is what joins them."""
    named = None if words.link is None else find_link(words.link, device=accelerator.name)
    joint = None if words.node_link is None else _node_link(words.node_link, accelerator)
    inside = named or usual_link(accelerator.name)
    if nodes > 1 and joint is None and named is not None and named.name.startswith(_NETWORKS):
        joint, inside = named, usual_link(accelerator.name)
    return Cluster(devices=devices, nodes=nodes, link=inside, node_link=joint)


def _node_link(text: str, accelerator: Accelerator) -> Link:
    try:
        return find_link(text, device=accelerator.name)
    except PlanInputError as error:
        networks = [link.name for link in LINKS if link.name.startswith(_NETWORKS)]
        near = nearest_names(text, networks) or tuple(networks)
        raise PlanInputError("node_link", f"no link {text!r} is known", near) from error


def demand_of(words: Words, trace: TraceLoad | None) -> Demand:
    """Return the demand: what the options say, and of a trace what they leave open.

    A trace gives mean lengths, its longest context and the rate of its busiest window.
    """
    isl = words.isl if words.isl is not None else trace.input_tokens if trace else None
    osl = words.osl if words.osl is not None else trace.output_tokens if trace else None
    for name, value in (("isl", isl), ("osl", osl)):
        if value is None:
            raise PlanInputError(name, "how many tokens a request has is not told", ("--trace",))
    rate, context = words.rate, words.context
    if trace is not None and words.concurrency is None:
        rate = rate if rate is not None else trace.rate_per_s_max
    if trace is not None and words.isl is None and context is None:
        context = trace.context_tokens_max
    return Demand(
        input_tokens=isl or 0,
        output_tokens=osl or 0,
        concurrency=words.concurrency,
        rate_per_s=rate,
        prefix_share=_prefix_share(words.prefix_share, trace),
        context_tokens=context,
        draft_tokens=words.draft_tokens,
        draft_acceptance=words.draft_acceptance,
    )


def _prefix_share(text: str | None, trace: TraceLoad | None) -> float:
    """Return the part of input that a cache holds: as told, or what the trace repeats."""
    if text is None:
        return 0.0
    if text == OF_TRACE:
        if trace is None:
            raise PlanInputError(
                "prefix_share", "there is no trace to read it from", ("--trace FILE",)
            )
        return trace.prefix_share_max
    try:
        return float(text)
    except ValueError:
        raise PlanInputError("prefix_share", f"{text!r} is no share", ("0.5", OF_TRACE)) from None


def read_trace(path: Path) -> TraceLoad:
    """Read an Azure trace (.csv) or a Mooncake trace (.jsonl); raises `SourceError`."""
    try:
        with path.open(encoding="utf-8") as lines:
            if path.suffix == ".csv":
                records = azure_records(lines, file=str(path))
                return load_of_trace(records, source=str(path), block_tokens=AZURE_BLOCK_TOKENS)
            records = mooncake_records(lines, file=str(path))
            return load_of_trace(records, source=str(path), block_tokens=MOONCAKE_BLOCK_TOKENS)
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    except WorkloadError as error:
        raise SourceError(str(error)) from error


def kv_bits_of(words: Words) -> int | None:
    """Return the bits of a value in the KV cache that were asked for."""
    return None if words.kv_precision is None else find_kv_bits(words.kv_precision)


def estimator_of(group: Group, precision: str) -> Estimator:
    """Return the estimator of a measured group's server on as many devices as a node usually has.

    Raises `PlanInputError` where its model, hardware or engine is not known.
    """
    engine = ENGINES.get(group.engine)
    if engine is None:
        raise PlanInputError("engine", f"no engine {group.engine!r} is known", tuple(ENGINES))
    accelerator, _, _ = hardware_of(group.system)
    return build_estimator(
        model_of(group.model, precision or None),
        accelerator,
        model_name=group.model,
        engine=engine,
        precision=precision,
        # benchmarks of 8-bit and 4-bit checkpoints run with an 8-bit cache
        kv_bits=NARROW_KV_BITS if precision in NARROW else None,
        cluster=Cluster(devices=NODE_DEVICES, nodes=1, link=usual_link(accelerator.name)),
    )
