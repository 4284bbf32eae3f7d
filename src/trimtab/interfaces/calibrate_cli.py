"""`trimtab calibrate`: the engine model fitted to what was measured, with its error on what it was not fitted to."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from trimtab.core.prefix import SLOT_SIMILARITY
from trimtab.interfaces.calibrate_inputs import read_measurement
from trimtab.interfaces.calibrate_tables import Priced, Served, price, priced_toml, show_priced
from trimtab.interfaces.common import friendly
from trimtab.interfaces.files import write_whole
from trimtab.interfaces.replica_toml import replica_toml
from trimtab.sim.fit import TRIES_MAX, Fitted, Limits, fit
from trimtab.sim.jobs import HostSpec
from trimtab.sim.measured import REGIME_SAMPLES_MIN, Regime, regimes_of
from trimtab.workloads.base import WorkloadError

_HOST: Final = ("cores", "threads", "replicas")


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement and what was fitted to it. `regimes`: requests of each in the fitted and the scored part."""

    source: str
    limits: Limits
    fitted: Fitted
    regimes: dict[str, tuple[int, int]]


@click.command("calibrate")
@click.argument(
    "measurements",
    nargs=-1,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--kv-tokens",
    type=click.IntRange(1),
    help="KV that the engine had; with --model by default what memory leaves.",
)
@click.option(
    "--block-tokens", type=click.IntRange(1), default=16, show_default=True, help="Of a KV block."
)
@click.option(
    "--budget-tokens",
    type=click.IntRange(1),
    default=2048,
    show_default=True,
    help="Most new tokens of a step (vLLM: --max-num-batched-tokens).",
)
@click.option(
    "--streams",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Most running requests (vLLM: --max-num-seqs).",
)
@click.option(
    "--engine",
    type=click.Choice(["paged", "slots"]),
    default="paged",
    show_default=True,
    help="paged: vLLM, SGLang; slots: llama.cpp, with as many as --streams says.",
)
@click.option(
    "--similarity",
    type=click.FloatRange(0.0, 1.0),
    default=SLOT_SIMILARITY,
    show_default=True,
    help="Share of a prompt from which on a slot is taken for it (--slot-prompt-similarity).",
)
@click.option(
    "--host",
    "host_sizes",
    type=(click.IntRange(1), click.IntRange(1), click.IntRange(1)),
    metavar="CORES THREADS REPLICAS",
    help="Slots: cores of a host, threads of a replica, replicas on a host that share the cores.",
)
@click.option(
    "--fit-share",
    type=click.FloatRange(0.1, 1.0),
    default=0.5,
    show_default=True,
    help="Part of the requests, by arrival, that is fitted; the rest is scored. 1: all, to score on another run.",
)
@click.option(
    "--tries", type=click.IntRange(10), default=TRIES_MAX, show_default=True, help="Simulations."
)
@click.option(
    "--model",
    metavar="PATH|NAME",
    help="Instead of measurements: a model whose steps are taken from kernel tables, or else a roofline.",
)
@click.option("--hardware", metavar="NAME", help="With --model: the accelerator, for example H100.")
@click.option(
    "--tp", type=click.IntRange(1), default=1, show_default=True, help="With --model: devices."
)
@click.option("--precision", help="With --model: weights (bf16, fp8, ...) [default: as stored].")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the [replica] sections of a scenario here (one measurement only).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@friendly
def calibrate_command(
    measurements: Sequence[Path],
    kv_tokens: int | None,
    block_tokens: int,
    budget_tokens: int,
    streams: int,
    engine: str,
    similarity: float,
    host_sizes: tuple[int, int, int] | None,
    fit_share: float,
    tries: int,
    model: str | None,
    hardware: str | None,
    tp: int,
    precision: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Fit the simulator's engine model to MEASUREMENTS and print its error on requests that it did not see.

    A measurement is a ledger (.sqlite), or a .jsonl with one request a line: input_toks, output_toks, queued_ts,
    scheduled_ts, first_token_ts, last_token_ts in seconds, as the engine saw them; or recorded requests (at_s,
    input_tokens, output_tokens, first_token_s, last_token_s, replica, cached_tokens). What the engine was started with
    is not fitted and must be right. Without measurements, --model and --hardware make the engine model that a plan
    rests on, with no error to tell.

    \b
    Examples:
      trimtab calibrate requests.jsonl --kv-tokens 41408 --streams 256 --out replica.toml
      trimtab calibrate out/ledger.sqlite --engine slots --streams 4 --kv-tokens 8192 --budget-tokens 256 --host 2 1 2
      trimtab calibrate --model Qwen/Qwen3-32B --hardware H100 --tp 2 --out replica.toml

    Exit codes: 0 fitted, 1 an error in the input, 2 usage.
    """
    if out is not None and len(measurements) > 1:
        raise click.UsageError("--out takes one measurement")
    _check_asked(measurements, model, hardware, kv_tokens)
    slots = engine == "slots"
    _check_priced(model, precision, for_slots=slots or host_sizes is not None)
    _check_host(host_sizes, slots=slots)
    limits = Limits(
        kv_tokens=kv_tokens or 1,
        block_tokens=block_tokens,
        budget_tokens=budget_tokens,
        streams_max=streams,
        similarity=similarity if slots else None,
        host=None if host_sizes is None else HostSpec(**dict(zip(_HOST, host_sizes, strict=True))),
    )
    if model is not None and hardware is not None:
        served = Served(model=model, hardware=hardware, tp=tp, precision=precision)
        _tell_priced(price(served, kv_tokens=kv_tokens, sizes=limits), out, as_json)
        return
    found = [_calibrate(path, limits, fit_share, tries) for path in measurements]
    if out is not None:
        write_whole(out, _toml(found[0]))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    for one in found:
        _show(one, Console())


def _check_asked(
    measurements: Sequence[Path], model: str | None, hardware: str | None, kv_tokens: int | None
) -> None:
    """Raise `UsageError` unless there are either measurements or a model on some hardware."""
    if (model is None) != (hardware is None):
        raise click.UsageError("--model and --hardware go together")
    if bool(measurements) == (model is not None):
        raise click.UsageError("give MEASUREMENTS, or --model and --hardware without any")
    if measurements and kv_tokens is None:
        raise click.UsageError("--kv-tokens is missing: the KV that the measured engine had")


def _check_priced(model: str | None, precision: str | None, *, for_slots: bool) -> None:
    """Raise `UsageError` for options that a priced replica, or a measured one, has no use for."""
    if model is not None and for_slots:
        raise click.UsageError(
            "--engine slots and --host are for MEASUREMENTS: --model prices a vLLM replica"
        )
    if model is None and precision is not None:
        raise click.UsageError("--precision is for --model")


def _check_host(sizes: tuple[int, int, int] | None, *, slots: bool) -> None:
    if sizes is not None and not slots:
        raise click.UsageError("--host is for --engine slots")


def _tell_priced(priced: Priced, out: Path | None, as_json: bool) -> None:
    if out is not None:
        write_whole(out, priced_toml(priced))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(priced)).decode())
    else:
        show_priced(priced, Console())


def _calibrate(path: Path, limits: Limits, fit_share: float, tries: int) -> Calibration:
    paged = limits.similarity is None
    measured = read_measurement(path, block_tokens=limits.block_tokens if paged else None)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        bar = bars.add_task(path.name, total=tries)

        def told(number: int, loss: float) -> None:
            bars.update(bar, completed=number, description=f"{path.name}, off by {loss:.1%}")

        try:
            fitted = fit(
                measured,
                limits,
                source=str(path),
                fit_share=fit_share,
                tries_max=tries,
                on_try=told,
            )
        except ValueError as error:
            raise WorkloadError(f"{path}: {error}") from error
        except ImportError as error:
            raise WorkloadError(
                "calibrating needs scipy: pip install 'trimtab[calibrate]'"
            ) from error
    regimes = regimes_of(measured, streams_max=limits.streams_max)
    counts = {
        regime.value: (
            sum(1 for one in regimes[: fitted.fitted] if one is regime),
            sum(1 for one in regimes[fitted.fitted :] if one is regime),
        )
        for regime in Regime
    }
    return Calibration(source=str(path), limits=limits, fitted=fitted, regimes=counts)


def _show(found: Calibration, console: Console) -> None:
    fitted = found.fitted
    rest = f"scored on the other {fitted.scored:,}" if fitted.scored else "none left to score"
    console.print(
        f"[bold]{found.source}[/bold]: fitted on the first {fitted.fitted:,} requests, {rest}; "
        f"{fitted.replicas} replica{'s' if fitted.replicas > 1 else ''}, {fitted.tries} simulations, "
        f"{fitted.preemptions:,.0f} preemptions simulated",
        soft_wrap=True,
    )
    cost = fitted.cost
    console.print(cost.formula, soft_wrap=True)
    if fitted.host is not None:
        host = fitted.host
        console.print(
            f"a request starts after {cost.start_ms:.3g} ms; each other replica at work on the host adds "
            f"{host.contention:.1%} to a step",
            soft_wrap=True,
        )
        console.print(
            f"the pace of a replica wanders by {host.unrest_prefill:.1%} in steps with prompts and by "
            f"{host.unrest_decode:.1%} in decodes alone, over {host.unrest_s:.3g} s",
            soft_wrap=True,
        )
    table = Table(show_edge=False)
    for name in ("regime", "metric", "statistic", "measured", "simulated", "error", "n"):
        table.add_column(
            name, justify="left" if name in {"regime", "metric", "statistic"} else "right"
        )
    for error in fitted.errors:
        beyond = " (not fitted)" if error.extrapolated else ""
        table.add_row(
            "all" if error.regime is None else f"{error.regime.value}{beyond}",
            error.metric,
            error.statistic.value,
            f"{error.measured:,.1f}",
            f"{error.simulated:,.1f}",
            f"{error.error:+.1%}",
            f"{error.samples:,}",
        )
    if fitted.errors:
        console.print(table)
    console.print(f"throughput of the whole measurement: {fitted.throughput_error:+.1%}")
    unseen = [name for name, (count, _) in found.regimes.items() if count < REGIME_SAMPLES_MIN]
    if unseen:
        console.print(
            f"not measured (fewer than {REGIME_SAMPLES_MIN} fitted requests): {', '.join(unseen)}"
        )


def _toml(found: Calibration) -> str:
    fitted = found.fitted
    seen = [name for name, (count, _) in found.regimes.items() if count >= REGIME_SAMPLES_MIN]
    return replica_toml(
        f"Fitted by trimtab calibrate to {found.source}.",
        found.limits,
        fitted.cost,
        host=fitted.host,
        regimes=seen,
    )
