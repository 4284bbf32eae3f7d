"""Runs layouts for real: one vLLM server each on this machine's CPUs, or servers that run already, measured in turn.

All servers are started first and stay idle while another one is measured, so that rounds can alternate between them:
what the machine does besides then falls on all alike. The first, unmeasured run of each server is its warm-up.
After the measured rounds, each server that was started here is traced by its own profiler over a short run: what ranks
spend in collectives is then known apart from what the times of the rounds say.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from trimtab.core.layout import Layout, PlanInputError
from trimtab.core.ports import Clock, EngineFormatError, LaunchError
from trimtab.engines.chrome_trace import TraceTimes, read_trace
from trimtab.engines.vllm import VllmLaunch
from trimtab.engines.vllm_effective import read_models
from trimtab.planning.efficiency import Run
from trimtab.planning.rank_signs import Ranks
from trimtab.runtime.layout_readings import readings
from trimtab.runtime.load import run_load
from trimtab.runtime.vllm_env import VllmEnvironment
from trimtab.runtime.vllm_launcher import VllmLauncher
from trimtab.workloads.steady import Steady, steady

WARM_OUTPUT_TOKENS: Final = 4
TRACED_OUTPUT_TOKENS: Final = 16
PROFILE_S_MAX: Final = 120.0
"""Writing a trace takes a server longer than making it."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A layout to be measured. `accelerators`: CPUs or devices that it uses; exactly one of `launch` and `url`.

    `model`: the name that the server at `url` serves, empty: what it says itself. `devices`: the page of an exporter of
    its devices, empty: none.
    """

    layout: Layout
    accelerators: int
    launch: VllmLaunch | None = None
    url: str = ""
    model: str = ""
    devices: str = ""


class RunFailedError(RuntimeError):
    """A run in which requests failed; the message says how many and why."""


Tell = Callable[[str], None]


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A subject that answers. `traces`: where its ranks leave their traces, None where it has no profiler."""

    subject: Subject
    url: str
    model: str
    traces: Path | None = None


async def measure_layouts(
    subjects: Sequence[Subject],
    load: Steady,
    *,
    rounds: int,
    clock: Clock,
    environment: VllmEnvironment | None,
    profile: bool = False,
    on_stage: Tell = lambda _: None,
) -> list[Run]:
    """Measure every layout `rounds` times, alternating; returns the runs in the order they were made.

    `profile`: trace those that are started here too. Raises `LaunchError`, `RunFailedError`.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trimtab-traces-")))
        launcher: VllmLauncher | None = None
        if any(subject.launch is not None for subject in subjects):
            if environment is None:
                raise LaunchError("launching needs vLLM's environment: make engine-vllm")
            launcher = VllmLauncher(clock=clock, environment=environment)
            await stack.enter_async_context(launcher)
        served = []
        for number, subject in enumerate(subjects):
            traces = folder / str(number) if profile else None
            served.append(await _served(subject, launcher, traces, f"{number}", on_stage))
        runs = await _rounds(served, load, rounds, on_stage)
        traced = await _traced(served, load, on_stage)
    return [_with_trace(run, traced.get((run.accelerators, run.layout))) for run in runs]


def _with_trace(run: Run, ranks: Sequence[TraceTimes] | None) -> Run:
    """Return a run with what the traces of its layout's ranks say: most time in collectives, how busy each is."""
    if ranks is None:
        return run
    busy = tuple(rank.compute_ms / rank.total_ms for rank in ranks if rank.total_ms > 0.0)
    seen = Ranks(source="computation in their traces", busy_shares=busy) if len(busy) > 1 else None
    return msgspec.structs.replace(
        run,
        communication_share=max(rank.communication_share for rank in ranks),
        ranks=run.ranks or seen,
    )


async def _served(
    subject: Subject,
    launcher: VllmLauncher | None,
    traces: Path | None,
    name: str,
    on_stage: Tell,
) -> Served:
    """Start a subject, or ask the server there is what it serves."""
    if subject.launch is None or launcher is None:
        model = subject.model or await _model_at(subject)
        return Served(subject=subject, url=subject.url, model=model)
    launch = msgspec.structs.replace(
        subject.launch, trace_folder="" if traces is None else str(traces)
    )
    on_stage(f"starting {_named(subject)}")
    running = await launcher.start(launch, name=f"{launch.layout}-{name}")
    return Served(subject=subject, url=running.url, model=launch.served_name, traces=traces)


async def _rounds(served: Sequence[Served], load: Steady, rounds: int, on_stage: Tell) -> list[Run]:
    words = {}
    for one in served:
        on_stage(f"warming {_named(one.subject)}")
        words[one.url] = await _warm(one, load)
    made = []
    for at in range(rounds):
        # Every other round runs backwards, so that a drift of the machine does not favour the first.
        order = served if at % 2 == 0 else served[::-1]
        for one in order:
            on_stage(f"round {at + 1} of {rounds}: {_named(one.subject)}")
            seeded = msgspec.structs.replace(
                load, model=one.model, seed=load.seed + at + 1, input_tokens=words[one.url]
            )
            async with readings(one.url, one.subject.devices) as found:
                run = await measure_once(one.subject, one.url, seeded)
            made.append(msgspec.structs.replace(run, ranks=found.ranks, transfers=found.transfers))
    return made


async def _warm(one: Served, load: Steady) -> int:
    """Send a first round with short answers; returns the words of a prompt that has the tokens asked for."""
    warm = msgspec.structs.replace(
        load, output_tokens=WARM_OUTPUT_TOKENS, rounds=1, model=one.model
    )
    run = await measure_once(one.subject, one.url, warm)
    if run.input_tokens is None:
        return load.input_tokens
    return max(1, round(load.input_tokens * load.input_tokens / run.input_tokens))


async def _model_at(subject: Subject) -> str:
    """Return the first model that a server says it serves; raises `RunFailedError`."""
    timeout = aiohttp.ClientTimeout(total=PROFILE_S_MAX)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{subject.url}/v1/models") as response,
        ):
            return read_models(await response.read()).id
    except (aiohttp.ClientError, TimeoutError, EngineFormatError) as error:
        raise RunFailedError(
            f"{_named(subject)} at {subject.url}: /v1/models was not answered: {error!r}"
        ) from error


async def _traced(
    served: Sequence[Served], load: Steady, on_stage: Tell
) -> dict[tuple[int, Layout], list[TraceTimes]]:
    """Return what the ranks of each layout that leaves traces spent their time on."""
    found: dict[tuple[int, Layout], list[TraceTimes]] = {}
    for one in served:
        if one.traces is None:
            continue
        on_stage(f"tracing {_named(one.subject)}")
        try:
            found[one.subject.accelerators, one.subject.layout] = await _trace(one, load)
        except RunFailedError as error:
            # The runs are whole without it: the share by the trace is unknown then.
            on_stage(f"no trace: {error}")
    return found


async def _trace(one: Served, load: Steady) -> list[TraceTimes]:
    """Run a short load under the server's profiler and read what its ranks wrote; raises `RunFailedError`."""
    assert one.traces is not None
    short = msgspec.structs.replace(
        load, output_tokens=min(load.output_tokens, TRACED_OUTPUT_TOKENS), rounds=1, model=one.model
    )
    await _ask(one, "start_profile")
    await measure_once(one.subject, one.url, short)
    await _ask(one, "stop_profile")
    try:
        found = sorted(one.traces.rglob("*.pt.trace.json*"))
        times = [read_trace(path.read_bytes()) for path in found]
    except (OSError, EngineFormatError) as error:
        raise RunFailedError(f"{_named(one.subject)}: its trace cannot be read: {error}") from error
    if not times:
        raise RunFailedError(f"{_named(one.subject)}: its profiler left no trace in {one.traces}")
    return times


async def _ask(one: Served, what: str) -> None:
    timeout = aiohttp.ClientTimeout(total=PROFILE_S_MAX)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(f"{one.url}/{what}") as response,
        ):
            if response.status != 200:
                raise RunFailedError(
                    f"{_named(one.subject)}: /{what} was answered with {response.status}"
                )
    except (aiohttp.ClientError, TimeoutError) as error:
        raise RunFailedError(
            f"{_named(one.subject)}: /{what} was not answered: {error!r}"
        ) from error


def _named(subject: Subject) -> str:
    return f"{subject.layout.label} on {subject.accelerators}"


async def measure_once(subject: Subject, url: str, load: Steady) -> Run:
    """Measure one run against a server; raises `RunFailedError` if a request failed."""
    result = await run_load(url, steady(load))
    found = result.summary
    if found.ok < found.n or found.ttft_ms is None or found.output_tokens_per_s is None:
        told = ", ".join(f"{count} {error}" for error, count in found.errors.items())
        raise RunFailedError(
            f"{subject.layout.label} at {url}: {found.n - found.ok} of {found.n} requests failed ({told or 'unknown'})"
        )
    if found.tpot_ms is None:
        raise RunFailedError(f"{subject.layout.label} at {url}: no answer had a second token")
    return Run(
        layout=subject.layout,
        accelerators=subject.accelerators,
        ttft_ms=found.ttft_ms.mean,
        tpot_ms=found.tpot_ms.mean,
        tokens_per_s=found.output_tokens_per_s,
        requests=found.ok,
        input_tokens=found.prompt_tokens / found.ok if found.prompt_tokens else None,
    )


def layout_of_name(name: str) -> Layout:
    """Return the layout of a name such as `tp2`, `pp2`, `dp2`, `tp2-ep` or `single`; raises `PlanInputError`."""
    sizes = {"tp": 1, "pp": 1, "dp": 1}
    expert = False
    for part in name.lower().split("-"):
        kind, size = part[:2], part[2:]
        if part == "ep":
            expert = True
        elif kind in sizes and size.isdigit() and int(size) >= 1:
            sizes[kind] = int(size)
        elif part != "single":
            raise PlanInputError(
                "layout", f"{name!r} names no layout", ("single", "tp2", "pp2", "dp2", "tp2-ep")
            )
    ranks = sizes["tp"] * sizes["dp"]
    return Layout(
        tp=sizes["tp"],
        pp=sizes["pp"],
        attention_dp=sizes["dp"],
        moe_ep=ranks if expert else 1,
        moe_tp=1,
    )
