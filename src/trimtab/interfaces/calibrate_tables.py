"""The engine model of a server that nobody measured: costs from kernel tables or a roofline, KV from the memory fit."""

import msgspec
from rich.console import Console

from trimtab.core.layout import Cluster, Demand, EstimateSource, Layout, PlanInputError
from trimtab.core.links import usual_link
from trimtab.interfaces.plan_inputs import hardware_of, model_of
from trimtab.interfaces.replica_toml import replica_toml
from trimtab.planning.layouts import Sizes, possible_layouts
from trimtab.runtime.plan_estimator import build_estimator, keep_times
from trimtab.sim.fit import Limits
from trimtab.sim.table_cost import TableCost, cost_of_times

_USUAL = Demand(input_tokens=1024, output_tokens=256, concurrency=1.0)
"""Asked for the KV that is left beside weights and buffers, which hardly depends on it."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """Which replica is meant: `tp` devices of `hardware` serve `model`, with weights as `precision` says."""

    model: str
    hardware: str
    tp: int = 1
    precision: str | None = None


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """A replica as planned. `source`: what its times rest on; `notes`: what they say of themselves."""

    served: Served
    limits: Limits
    found: TableCost
    source: EstimateSource
    notes: tuple[str, ...]


def price(served: Served, *, kv_tokens: int | None, sizes: Limits) -> Priced:
    """Return the engine model of a replica of vLLM with these sizes; its KV is what memory leaves unless it is told.

    Raises `PlanInputError` where model, hardware or layout is not possible, `SourceError` for a file that is no model.
    """
    accelerator, _, _ = hardware_of(served.hardware)
    shape = model_of(served.model, served.precision)
    # A size that does not divide the model has no times, whatever a formula says.
    node = Cluster(devices=served.tp, nodes=1, link=usual_link(accelerator.name))
    possible_layouts(shape, node, Sizes(tp=served.tp))
    estimator = build_estimator(
        shape, accelerator, model_name=served.model, precision=served.precision or ""
    )
    layout = Layout(tp=served.tp, moe_tp=served.tp if shape.experts else 1)
    fit = estimator.fit(layout, _USUAL)
    if not fit.fits:
        raise PlanInputError("tp", f"{served.model} does not fit {layout.label}: {fit.because}")
    limits = msgspec.structs.replace(sizes, kv_tokens=kv_tokens or int(fit.kv_tokens))
    times = estimator.times_of(layout)
    found = cost_of_times(
        times,
        limits,
        source=f"{_words(times.source)} of {served.model} on {accelerator.name}, {layout.label}",
    )
    keep_times()
    return Priced(served=served, limits=limits, found=found, source=times.source, notes=times.notes)


def _words(source: EstimateSource) -> str:
    return source.value.replace("_", " ")


def priced_toml(priced: Priced) -> str:
    """Return the sections of a scenario; no regime was measured."""
    said = f"Not measured: from {priced.found.cost.source}."
    return replica_toml(said, priced.limits, priced.found.cost, regimes=())


def show_priced(priced: Priced, console: Console) -> None:
    """Print the costs, what they rest on and how far the formula is off it."""
    found, limits = priced.found, priced.limits
    console.print(f"[bold]{found.cost.source}[/bold], {limits.kv_tokens:,} tokens of KV")
    console.print(found.cost.formula, soft_wrap=True)
    console.print(
        f"the formula is off these times by {found.error_mean:.1%} in the mean and {found.error_max:.1%} at most, "
        f"over {found.points} steps",
        soft_wrap=True,
    )
    for note in priced.notes:
        console.print(note, soft_wrap=True)
    console.print(
        "no engine was measured: `trimtab calibrate` on a ledger or a benchmark of yours says how far it is off"
    )
