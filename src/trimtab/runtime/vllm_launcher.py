"""Starts vLLM servers, waits until they answer, tells what they take and what they really run, and ends them.

What can be known before a start is checked before it, so that an error names the cause and the fix and costs nothing.
What was asked is compared with what the server says it runs. The same object attaches to servers that somebody else
started: those can be asked and not stopped.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import aiohttp
import msgspec

from trimtab.core.ports import Clock, EngineFormatError, LaunchError
from trimtab.core.served import ModelShape
from trimtab.engines.model_config import read_model_config
from trimtab.engines.vllm import Device, VllmLaunch, bind_threads, launch_command
from trimtab.engines.vllm_checks import Refusal, check_launch
from trimtab.engines.vllm_effective import ServedModel, differences, read_cache, read_models
from trimtab.engines.vllm_log import StartReport, read_start_log
from trimtab.runtime.hardware import memory_available, usable_cpus
from trimtab.runtime.launcher import free_ports, port_trouble
from trimtab.runtime.model_folder import weight_files
from trimtab.runtime.vllm_env import PLUGINS, VllmEnvironment
from trimtab.runtime.vllm_server import ProcessMemory, VllmServer, spawn_server

START_TIMEOUT_S: Final = 300.0
STOP_GRACE_S: Final = 15.0
_HEALTH_EVERY_S: Final = 0.25
_ASK_TIMEOUT_S: Final = 30.0
_DRAIN_EVERY_S: Final = 0.25
# The interpreter with torch in it, before any weight: seen as 0.6 to 0.7 GiB in each process of a server.
PROCESS_BYTES: Final = 700 * 1024 * 1024

Stage = Callable[[str, float], None]
"""Told of each new stage of a start: its words, and seconds since the start."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A server that answers. `launch`, `pid`, `log_path` are None for one that somebody else started.

    `report`: from its start-up log; `differences`: what it runs otherwise than asked for, in words.
    """

    name: str
    url: str
    model: ServedModel
    start_s: float
    launch: VllmLaunch | None = None
    pid: int | None = None
    log_path: str | None = None
    report: StartReport = StartReport()
    differences: tuple[str, ...] = ()


class VllmLauncher:
    """Use it as an asynchronous context: leaving it ends every server it started. Nothing starts after that."""

    def __init__(
        self,
        *,
        clock: Clock,
        environment: VllmEnvironment,
        start_timeout_s: float = START_TIMEOUT_S,
        log_folder: Path | None = None,
        available: Callable[[], int | None] = memory_available,
    ) -> None:
        self._clock = clock
        self._environment = environment
        self._start_timeout_s = start_timeout_s
        self._available = available
        self._log_folder = log_folder or Path(tempfile.gettempdir()) / f"trimtab-logs-{os.getuid()}"
        self._servers: dict[str, VllmServer] = {}
        self._running: dict[str, Running] = {}
        self._http: aiohttp.ClientSession | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(
        self,
        launch: VllmLaunch,
        *,
        name: str = "vllm",
        on_stage: Stage = lambda _stage, _seconds: None,
        allowed: frozenset[Refusal] = frozenset(),
    ) -> Running:
        """Start a server and return once it answers; raises `LaunchError` that names the cause.

        `launch.model`: a folder, or the name of a checkpoint of the environment; `launch.port` 0: a free one.
        `allowed`: what is not refused, because the caller measures for itself what the refusal warns of.
        """
        if self._closed:
            raise LaunchError(f"server {name} was not started: the launcher is closed")
        if (old := self._servers.get(name)) is not None and old.exit_code is None:
            raise LaunchError(f"server {name} runs already as process {old.pid}")
        launch = self.settled(launch)
        self._check(launch, name, allowed)
        try:
            async with asyncio.timeout(self._start_timeout_s):
                return await self._start(launch, name, on_stage)
        except TimeoutError as error:
            words = await self._fail(name)
            raise LaunchError(
                f"server {name} did not answer within {self._start_timeout_s:g} s (its log: {words})"
            ) from error
        except BaseException:
            await self.stop(name, grace_s=0)
            raise

    async def _fail(self, name: str) -> str:
        words = self._servers[name].last_error if name in self._servers else ""
        await self.stop(name, grace_s=0)
        return words or "empty"

    def settled(self, launch: VllmLaunch) -> VllmLaunch:
        """Return the launch with its model's folder, and ports and CPUs where it leaves them open."""
        port, side = free_ports(2)
        threads = launch.threads
        if not threads and launch.device is Device.CPU and launch.ranks > 0:
            threads = bind_threads(usable_cpus(), launch.ranks)
        return msgspec.structs.replace(
            launch,
            model=str(self._environment.model(launch.model)),
            port=launch.port or port,
            side_channel_port=launch.side_channel_port or side,
            threads=threads,
        )

    def _check(self, launch: VllmLaunch, name: str, allowed: frozenset[Refusal]) -> None:
        found = check_launch(launch, model_shape(launch.model))
        problems = [problem for problem in found if problem.refusal not in allowed]
        if problems:
            raise LaunchError(f"server {name}: " + "; ".join(problem.text for problem in problems))
        if (trouble := port_trouble(launch.host, launch.port)) is not None:
            raise LaunchError(f"server {name} {trouble}")
        need, available = memory_need(launch), self._available()
        if available is not None and need > available:
            raise LaunchError(
                f"server {name} needs about {need >> 20:,} MiB and {available >> 20:,} MiB are available: "
                "lower its KV cache or its ranks"
            )

    async def _start(self, launch: VllmLaunch, name: str, on_stage: Stage) -> Running:
        began_s = self._clock.mono_s()
        command = launch_command(launch, python=str(self._environment.python), plugins=str(PLUGINS))
        log_path = self._log_folder / f"{os.getpid()}-{name}.log"
        server = await spawn_server(
            name,
            command.argv,
            command.env,
            log_path,
            lambda stage: on_stage(stage, self._clock.mono_s() - began_s),
        )
        self._servers[name] = server
        await self._await_health(server, launch.url)
        server.serves()
        model = await self._ask_model(launch.url)
        report = read_start_log(server.start_log)
        cache = read_cache(await self._get(launch.url, "/metrics"))
        if report.kv_blocks is None:
            report = msgspec.structs.replace(report, kv_blocks=cache.get("kv_blocks"))
        running = Running(
            name=name,
            url=launch.url,
            model=model,
            start_s=self._clock.mono_s() - began_s,
            launch=launch,
            pid=server.pid,
            log_path=str(log_path),
            report=report,
            differences=differences(launch, report, model, cache.get("engines")),
        )
        self._running[name] = running
        return running

    async def _await_health(self, server: VllmServer, url: str) -> None:
        while server.exit_code is None:
            if await self.is_healthy(url):
                return
            await asyncio.sleep(_HEALTH_EVERY_S)
        await server.wait()
        raise LaunchError(
            f"server {server.name} ended with exit code {server.exit_code} before it answered: "
            f"{server.last_error or 'it said nothing'} (log: {server.log_path})"
        )

    async def attach(self, url: str, *, name: str) -> Running:
        """Take on a server that somebody else started; it is never stopped from here. Raises `LaunchError`."""
        began_s = self._clock.mono_s()
        url = url.rstrip("/")
        if not await self.is_healthy(url):
            raise LaunchError(f"server {name}: nothing healthy answers at {url}/health")
        model = await self._ask_model(url)
        running = Running(name=name, url=url, model=model, start_s=self._clock.mono_s() - began_s)
        self._running[name] = running
        return running

    async def is_healthy(self, url: str) -> bool:
        """Say whether a server answers its health check."""
        try:
            async with self._session().get(f"{url}/health") as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def drain(self, name: str, *, timeout_s: float) -> bool:
        """Wait until a server has no request running or waiting; False if it still has some after `timeout_s`.

        Nobody is kept from sending more: stop sending first.
        """
        deadline_s = self._clock.mono_s() + timeout_s
        while True:
            cache = read_cache(await self._get(self._url(name), "/metrics"))
            if not cache.get("requests", 0):
                return True
            if self._clock.mono_s() >= deadline_s:
                return False
            await asyncio.sleep(_DRAIN_EVERY_S)

    async def stop(self, name: str, *, grace_s: float = STOP_GRACE_S) -> None:
        """End a server: ask, wait `grace_s`, kill all its processes. Returns when none is left.

        One that was attached is only forgotten.
        """
        server = self._servers.get(name)
        if server is not None:
            await server.stop(grace_s=grace_s)
            self._servers.pop(name, None)
        self._running.pop(name, None)

    async def close(self) -> None:
        """End every server that was started here. Nothing starts after this."""
        self._closed = True
        await asyncio.gather(*(self.stop(name) for name in [*self._servers]))
        if self._http is not None:
            await self._http.close()

    def running(self, name: str) -> Running | None:
        """Return what is known of a server that answers, None for any other."""
        return self._running.get(name)

    async def wait_exit(self, name: str) -> int | None:
        """Wait until a server has ended and return its exit code; None if it was not started here."""
        server = self._servers.get(name)
        return None if server is None else await server.wait()

    def memory(self, name: str) -> tuple[ProcessMemory, ...]:
        """Return the memory of each process of a server, empty if it was not started here."""
        server = self._servers.get(name)
        return () if server is None else server.memory()

    def last_error(self, name: str) -> str:
        """Return the last line of a server's log that tells of an error."""
        server = self._servers.get(name)
        return "" if server is None else server.last_error

    def _url(self, name: str) -> str:
        running = self._running.get(name)
        if running is None:
            raise LaunchError(f"server {name} does not run")
        return running.url

    async def _ask_model(self, url: str) -> ServedModel:
        try:
            return read_models(await self._get(url, "/v1/models"))
        except EngineFormatError as error:
            raise LaunchError(f"{url}/v1/models: {error}") from error

    async def _get(self, url: str, path: str) -> bytes:
        try:
            async with self._session().get(url + path) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LaunchError(f"{url}{path} did not answer: {type(error).__name__}") from error
        if response.status != 200:
            raise LaunchError(f"{url}{path} answered with status {response.status}")
        return body

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=_ASK_TIMEOUT_S)
            self._http = aiohttp.ClientSession(timeout=timeout)
        return self._http


def model_shape(folder: str) -> ModelShape | None:
    """Return the shape that a model folder's config.json describes, None where it cannot be read as one."""
    path = Path(folder) / "config.json"
    try:
        return read_model_config(path.read_bytes(), source=str(path), name=path.parent.name)
    except (OSError, EngineFormatError):
        return None


def memory_need(launch: VllmLaunch) -> int:
    """Estimate the bytes a server takes: weights (copied to each data-parallel rank), KV caches, and its processes.

    Processes: one per rank, an engine per data-parallel rank, the API's, and one that coordinates several engines. An
    unset KV cache is left out: vLLM then takes what is free.
    """
    folder = Path(launch.model)
    weights = sum((folder / name).stat().st_size for name in weight_files(folder))
    coordinator = 1 if launch.data_parallel > 1 else 0
    processes = launch.ranks + launch.data_parallel + coordinator + 1
    return (
        weights * launch.data_parallel
        + launch.kv_cache_bytes * launch.ranks
        + processes * PROCESS_BYTES
    )
