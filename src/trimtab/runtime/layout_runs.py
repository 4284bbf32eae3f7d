"""Runs layouts for real: one vLLM server each on this machine's CPUs, or servers that run already, measured in turn.

All servers are started first and stay idle while another one is measured, so that rounds can alternate between them:
what the machine does besides then falls on all alike. The first, unmeasured run of each server is its warm-up.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from trimtab.core.layout import Layout, PlanInputError
from trimtab.core.ports import Clock, LaunchError
from trimtab.engines.vllm import VllmLaunch
from trimtab.planning.efficiency import Run
from trimtab.runtime.load import run_load
from trimtab.runtime.vllm_env import VllmEnvironment
from trimtab.runtime.vllm_launcher import VllmLauncher
from trimtab.workloads.steady import Steady, steady

WARM_OUTPUT_TOKENS: Final = 4


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A layout to be measured. `accelerators`: CPUs or devices that it uses; exactly one of `launch` and `url`."""

    layout: Layout
    accelerators: int
    launch: VllmLaunch | None = None
    url: str = ""
    model: str = ""


class RunFailedError(RuntimeError):
    """A run in which requests failed; the message says how many and why."""


Tell = Callable[[str], None]


async def measure_layouts(
    subjects: Sequence[Subject],
    load: Steady,
    *,
    rounds: int,
    clock: Clock,
    environment: VllmEnvironment | None,
    on_stage: Tell = lambda _: None,
) -> list[Run]:
    """Measure every layout `rounds` times, alternating; returns the runs in the order they were made.

    Raises `LaunchError`, `RunFailedError`.
    """
    async with AsyncExitStack() as stack:
        served: list[tuple[Subject, str, str]] = []
        launcher: VllmLauncher | None = None
        for subject in subjects:
            if subject.launch is None:
                served.append((subject, subject.url, subject.model))
                continue
            if launcher is None:
                if environment is None:
                    raise LaunchError("launching needs vLLM's environment: make engine-vllm")
                launcher = VllmLauncher(clock=clock, environment=environment)
                await stack.enter_async_context(launcher)
            name = subject.launch.layout
            on_stage(f"starting {subject.layout.label} on {subject.accelerators}")
            running = await launcher.start(subject.launch, name=f"{name}-{len(served)}")
            served.append((subject, running.url, subject.launch.served_name))
        return await _rounds(served, load, rounds, on_stage)


async def _rounds(
    served: Sequence[tuple[Subject, str, str]], load: Steady, rounds: int, on_stage: Tell
) -> list[Run]:
    warm = msgspec.structs.replace(load, output_tokens=WARM_OUTPUT_TOKENS, rounds=1)
    for subject, url, model in served:
        on_stage(f"warming {subject.layout.label}")
        await measure_once(subject, url, msgspec.structs.replace(warm, model=model))
    made = []
    for at in range(rounds):
        # Every other round runs backwards, so that a drift of the machine does not favour the first.
        order = served if at % 2 == 0 else served[::-1]
        for subject, url, model in order:
            on_stage(f"round {at + 1} of {rounds}: {subject.layout.label}")
            seeded = msgspec.structs.replace(load, model=model, seed=load.seed + at + 1)
            made.append(await measure_once(subject, url, seeded))
    return made


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
