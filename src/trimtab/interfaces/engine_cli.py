"""`trimtab engine`: start one model server and describe it, until Ctrl-C."""

import asyncio
import shlex
import signal

import click
import msgspec
from rich.console import Console

from trimtab.engines.vllm import (
    Execution,
    KvRole,
    NgramSpeculation,
    VllmLaunch,
    launch_command,
)
from trimtab.interfaces.common import friendly
from trimtab.interfaces.engine_words import running_lines
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.vllm_env import CHECKPOINTS, PLUGINS, SMOLLM2, find_environment
from trimtab.runtime.vllm_launcher import Running, VllmLauncher

MIB = 1024 * 1024


@click.group()
def engine() -> None:
    """Start one model server of an engine other than the embedded one."""


@engine.command()
@click.option(
    "--model",
    default=SMOLLM2,
    show_default=True,
    help=f"{', '.join(CHECKPOINTS)}, or a folder with config.json and weights.",
)
@click.option("--name", default="", help="Name that clients use [default: the model's folder].")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="[default: a free port]")
@click.option(
    "--tp", type=click.IntRange(1), default=1, show_default=True, help="Tensor-parallel ranks."
)
@click.option("--pp", type=click.IntRange(1), default=1, show_default=True, help="Pipeline stages.")
@click.option(
    "--dp", type=click.IntRange(1), default=1, show_default=True, help="Data-parallel ranks."
)
@click.option("--ep", is_flag=True, help="Spread the experts over the tensor-parallel ranks.")
@click.option(
    "--threads", default="", help="CPUs per rank, such as 0|1 [default: equal shares of all]."
)
@click.option(
    "--context",
    type=click.IntRange(1),
    default=4096,
    show_default=True,
    help="Longest request, in tokens.",
)
@click.option(
    "--kv-cache",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="MiB of KV cache per rank.",
)
@click.option(
    "--dtype",
    type=click.Choice(("bfloat16", "float32")),
    default="bfloat16",
    show_default=True,
    help="Precision of weights and activations. float32 is faster on a CPU without bf16 instructions.",
)
@click.option("--kv-dtype", default="auto", show_default=True, help="Precision of the KV cache.")
@click.option("--sequences", type=click.IntRange(1), default=None, help="Most requests in a batch.")
@click.option(
    "--batched-tokens",
    type=click.IntRange(1),
    default=None,
    help="Most tokens in a step: the prefill chunk.",
)
@click.option("--no-prefix-cache", is_flag=True, help="Compute every prompt from its first token.")
@click.option(
    "--draft-tokens",
    type=click.IntRange(1),
    default=None,
    help="Speculate with n-grams of the prompt, this deep.",
)
@click.option(
    "--execution",
    type=click.Choice([str(item) for item in Execution]),
    default=None,
    help="How the graph runs [default: eager, and traced for a pipeline].",
)
@click.option(
    "--kv-role",
    type=click.Choice([str(item) for item in KvRole]),
    default=str(KvRole.NONE),
    show_default=True,
    help="Hand KV over to other servers, or take it, by NIXL.",
)
@click.option(
    "--kv-lease",
    "kv_lease_s",
    type=click.IntRange(6),
    default=None,
    help="Seconds that KV nobody fetches is kept [default: 30].",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--python", default="", help="Interpreter with vLLM in it [default: that of make engine-vllm]."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1),
    default=300.0,
    show_default=True,
    help="Longest start, in s.",
)
@click.option(
    "--command", "only_command", is_flag=True, help="Print the exact command and start nothing."
)
@click.option("--json", "as_json", is_flag=True, help="Print what runs as one JSON object.")
@friendly
def vllm(**options: object) -> None:
    """Start a vLLM server on this machine's CPUs, say what it takes, and keep it until Ctrl-C.

    A layout that is known to fail is refused before the start, with the nearest one that works. What vLLM runs
    otherwise than asked for is said. A start takes 40 seconds and more.

    \b
    Examples:
      trimtab engine vllm --port 8000                          one server of SmolLM2
      trimtab engine vllm --model made-llama --tp 2            two ranks, one CPU share each
      trimtab engine vllm --model made-moe --tp 2 --ep         its experts spread over both
      trimtab engine vllm --kv-cache 64 --json                 a small KV cache, described as JSON
      trimtab engine vllm --model made-llama --pp 2 --command  only show what would be run
      trimtab engine vllm --kv-role kv_both --threads 0        one of a pair that hands KV over
    """
    choice = msgspec.convert(options, _Options)
    if choice.only_command:
        click.echo(_command(choice))
        return
    raise SystemExit(asyncio.run(_run(choice)))


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options as click gives them."""

    model: str
    name: str
    port: int
    tp: int
    pp: int
    dp: int
    ep: bool
    threads: str
    context: int
    kv_cache: int
    dtype: str
    kv_dtype: str
    sequences: int | None
    batched_tokens: int | None
    no_prefix_cache: bool
    draft_tokens: int | None
    execution: Execution | None
    kv_role: KvRole
    kv_lease_s: int | None
    seed: int
    python: str
    timeout_s: float
    only_command: bool
    as_json: bool

    def launch(self) -> VllmLaunch:
        """Return what they describe."""
        drafts = self.draft_tokens
        return VllmLaunch(
            model=self.model,
            served_name=self.name or self.model.rstrip("/").rpartition("/")[2],
            port=self.port,
            context_tokens=self.context,
            tensor_parallel=self.tp,
            pipeline_parallel=self.pp,
            data_parallel=self.dp,
            expert_parallel=self.ep,
            execution=self.execution,
            threads=self.threads,
            kv_cache_bytes=self.kv_cache * MIB,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            sequences_max=self.sequences or 0,
            batched_tokens_max=self.batched_tokens or 0,
            prefix_caching=not self.no_prefix_cache,
            speculation=None if drafts is None else NgramSpeculation(draft_tokens=drafts),
            kv_role=self.kv_role,
            kv_lease_s=self.kv_lease_s or 0,
            seed=self.seed,
        )


def _command(choice: _Options) -> str:
    """Return the command as a shell takes it, variables first."""
    environment = find_environment(choice.python)
    launcher = VllmLauncher(clock=SystemClock(), environment=environment)
    launch = launcher.settled(choice.launch())
    command = launch_command(launch, python=str(environment.python), plugins=str(PLUGINS))
    words = [f"{name}={shlex.quote(value)}" for name, value in sorted(command.env.items())]
    return " ".join([*words, shlex.join(command.argv)])


async def _run(choice: _Options) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    progress = Console(stderr=True)
    environment = find_environment(choice.python)
    async with VllmLauncher(
        clock=SystemClock(), environment=environment, start_timeout_s=choice.timeout_s
    ) as launcher:
        running = await _start(launcher, choice, stop, progress)
        if running is None:
            return 0
        _show(launcher, running, choice)
        return await _until_stopped(launcher, running, stop)


async def _start(
    launcher: VllmLauncher, choice: _Options, stop: asyncio.Event, progress: Console
) -> Running | None:
    """Return the server once it answers, None if it was to stop before."""

    def tell(stage: str, seconds: float) -> None:
        progress.print(f"{seconds:6.1f} s  {stage}", highlight=False, markup=False)

    starting = asyncio.ensure_future(launcher.start(choice.launch(), on_stage=tell))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        return starting.result()
    starting.cancel()
    await asyncio.wait({starting})
    return None


def _show(launcher: VllmLauncher, running: Running, choice: _Options) -> None:
    processes = launcher.memory(running.name)
    if choice.as_json:
        described = msgspec.to_builtins(running) | {"processes": msgspec.to_builtins(processes)}
        click.echo(msgspec.json.encode(described).decode())
        return
    for line in running_lines(running, processes):
        click.echo(line)
    click.echo("Ctrl-C stops it.")


async def _until_stopped(launcher: VllmLauncher, running: Running, stop: asyncio.Event) -> int:
    """Wait for Ctrl-C or for the server's end; exit code 1 if it ended by itself."""
    ending = asyncio.ensure_future(launcher.wait_exit(running.name))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not ending.done():
        ending.cancel()
        return 0
    words = launcher.last_error(running.name)
    click.echo(f"the server ended by itself with exit code {ending.result()}: {words}", err=True)
    return 1
