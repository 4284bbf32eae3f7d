"""The estimator that plans: memory, measured kernels where there are any, a roofline where there are none.

It is not corrected by measurements; whoever has some wraps it. Answers are kept: a plan asks the same layout under many
loads, and its memory depends on the context alone.
"""

from typing import Final

import msgspec

from trimtab.core.layout import Cluster, Demand, EstimateSource, Expected, Layout, Link, MemoryFit
from trimtab.core.served import Accelerator, EngineKind, ModelShape
from trimtab.planning.consensus import AgreedTimes
from trimtab.planning.estimate import Bounds, Extra, Replica
from trimtab.planning.kernel_port import KernelTables, NoTimes, Serving, StepTimes
from trimtab.planning.memory import STORED_KV_BITS, memory_fit
from trimtab.planning.precision import find_precision, stored_bits
from trimtab.planning.roofline_times import RooflineTimes, collective_ms
from trimtab.planning.server_pace import pace_of
from trimtab.runtime.kernel_cache import CompiledCache
from trimtab.runtime.kernel_names import ENGINES
from trimtab.runtime.kernel_tables import PackageTables
from trimtab.runtime.vllm_env import cache_folder

_TABLES: Final = PackageTables(CompiledCache(cache_folder() / "kernels"))
"""Tables that were loaded stay so for the life of the process."""

_SLOWER_SHARE: Final = 0.9
"""A link below that share of the device's own is slower than what the tables were measured on."""


class TableEstimator:
    """Memory and expected times of one model on one kind of device; see `planning.plan_ports.Estimator`."""

    def __init__(
        self, served: Serving, model: ModelShape, accelerator: Accelerator, *,
        cluster: Cluster | None, tables: KernelTables,
    ) -> None:  # fmt: skip
        self._served = served
        self._model = model
        self._device = accelerator
        self._cluster = cluster
        self._tables = tables
        self._operands = _operand_bits(model, served.precision)
        self._kv_bits = served.kv_bits or STORED_KV_BITS
        self._fits: dict[tuple[Layout, int], MemoryFit] = {}
        self._times: dict[Layout, StepTimes] = {}
        self._expected: dict[tuple[Layout, Demand], Expected] = {}

    @property
    def sources(self) -> tuple[str, ...]:
        """What the times of the layouts asked for so far rest on, each once."""
        said = dict.fromkeys(note for times in self._times.values() for note in times.notes)
        return tuple(said)

    def fit(self, layout: Layout, demand: Demand) -> MemoryFit:
        """Account for every byte of the fullest rank; raises `PlanInputError` for a context beyond the model."""
        one = msgspec.structs.replace(layout, replicas=1)
        context = demand.context_tokens or demand.input_tokens + demand.output_tokens
        key = (one, context)
        if key not in self._fits:
            self._fits[key] = memory_fit(
                self._model,
                self._device,
                one,
                demand,
                kv_bits=self._kv_bits,
                engine=self._served.engine,
            )
        return self._fits[key]

    def expected(self, layout: Layout, demand: Demand) -> Expected:
        """Return the times to expect of one replica under a demand, uncorrected and without intervals."""
        one = msgspec.structs.replace(layout, replicas=1)
        key = (one, demand)
        if key not in self._expected:
            fit = self.fit(one, demand)
            bounds = Bounds(kv_tokens=max(0.0, fit.kv_tokens))
            times = self._times_of(one)
            replica = Replica(
                times, one, pace_of(self._served.engine), bounds, self._extra(one, times)
            )
            self._expected[key] = replica.expected(demand)
        return self._expected[key]

    def _times_of(self, layout: Layout) -> StepTimes:
        if layout not in self._times:
            self._times[layout] = self._agreed(layout) or RooflineTimes(
                self._model,
                self._device,
                layout,
                operand_bits=self._operands,
                kv_share=self._kv_bits / 16.0,
                link=self._link(layout),
            )
        return self._times[layout]

    def _agreed(self, layout: Layout) -> StepTimes | None:
        """Return what the tables of the engine and of others agree on; None where none has the layout."""
        own = self._tables.times(self._served, layout)
        others: list[StepTimes] = []
        for engine in ENGINES:
            if engine is self._served.engine:
                continue
            found = self._tables.times(msgspec.structs.replace(self._served, engine=engine), layout)
            if not isinstance(found, NoTimes):
                others.append(found)
        if isinstance(own, NoTimes):
            return AgreedTimes(None, others) if others else None
        return AgreedTimes(own, others)

    def _link(self, layout: Layout) -> Link | None:
        """The link that the ranks of a stage talk over: between nodes where they do not fit into one."""
        if self._cluster is None:
            return _own_link(self._device)
        spread = layout.tp * layout.attention_dp > self._cluster.devices
        return (self._cluster.node_link or self._cluster.link) if spread else self._cluster.link

    def _extra(self, layout: Layout, times: StepTimes) -> Extra:
        """Return what a slower link adds; the roofline has its link in it already."""
        link, own = self._link(layout), _own_link(self._device)
        ranks = layout.tp * layout.attention_dp
        if times.source is EstimateSource.ROOFLINE or ranks < 2 or link is None or own is None:
            return Extra()
        if not link.bytes_per_s or not own.bytes_per_s:
            return Extra()
        if link.bytes_per_s >= _SLOWER_SHARE * own.bytes_per_s:
            return Extra()
        at = {n: collective_ms(self._model, ranks, n, link) - collective_ms(self._model, ranks, n, own)
              for n in (0, 1000)}  # fmt: skip
        return Extra(step_ms=max(0.0, at[0]), token_ms=max(0.0, (at[1000] - at[0]) / 1000.0))


def _own_link(device: Accelerator) -> Link | None:
    if device.link_bytes_per_s is None:
        return None
    return Link(
        name=f"the link of {device.name}",
        bytes_per_s=device.link_bytes_per_s,
        latency_us=5.0,
        peer_access=None,
        source=device.source,
    )


def _operand_bits(model: ModelShape, precision: str) -> int:
    if precision:
        return find_precision(precision).operand_bits
    return 8 if model.parts and stored_bits(model) <= 8.5 and stored_bits(model) > 5.0 else 16


def build_estimator(
    model: ModelShape,
    accelerator: Accelerator,
    *,
    model_name: str,
    engine: EngineKind = EngineKind.VLLM,
    precision: str = "",
    kv_bits: float | None = None,
    cluster: Cluster | None = None,
    tables: KernelTables | None = None,
) -> TableEstimator:
    """Return the estimator of a model on a kind of device.

    `model` has its precision applied already; `model_name`: what the model was called, a name or a folder, to look for
    its kernels. `kv_bits` None: 16, as engines take unless told. `tables`: where measured times come from; the
    installed package unless told otherwise. `cluster` None: the device's own links.
    """
    served = Serving(
        model=model_name,
        system=accelerator.name,
        engine=engine,
        precision=precision,
        kv_bits=kv_bits or STORED_KV_BITS,
    )
    return TableEstimator(served, model, accelerator, cluster=cluster, tables=tables or _TABLES)
