"""The estimator that plans: memory, measured kernels where there are any, a roofline where there are none.

It is not corrected by measurements; whoever has some wraps it. Answers are kept: a plan asks the same layout under many
loads, and its memory depends on the context alone.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from trimtab.core.layout import Cluster, Demand, EstimateSource, Expected, Layout, Link, MemoryFit
from trimtab.core.served import Accelerator, EngineKind, ModelShape
from trimtab.diagnosis.served_facts import ExpertExchange
from trimtab.planning.consensus import AgreedTimes
from trimtab.planning.doubts import doubted, draft_doubts, link_doubts
from trimtab.planning.estimate import Bounds, Extra, Replica
from trimtab.planning.exchange import Exchange, exchange_of
from trimtab.planning.kernel_port import KernelTables, NoTimes, Parted, Serving, StepTimes
from trimtab.planning.memory import STORED_KV_BITS, memory_fit, streams_at
from trimtab.planning.mixture_times import (
    MixtureTimes,
    Reference,
    even_reference,
    near_reference,
)
from trimtab.planning.precision import find_precision, stored_bits
from trimtab.planning.roofline_times import NO_KERNELS, collective_ms, parted_roofline
from trimtab.planning.server_pace import pace_of
from trimtab.runtime.kernel_cache import GridCache
from trimtab.runtime.kernel_excerpt import Excerpts
from trimtab.runtime.kernel_names import ENGINES
from trimtab.runtime.kernel_tables import PackageTables
from trimtab.runtime.vllm_env import cache_folder

_TABLES: Final = PackageTables(
    GridCache(cache_folder() / "kernels"), Excerpts(cache_folder() / "kernels" / "tables")
)
"""Tables that were loaded stay so for the life of the process."""

_SLOWER_SHARE: Final = 0.9
"""A link below that share of the device's own is slower than what the tables were measured on."""


def keep_times() -> None:
    """Keep the times that were asked of the installed tables, so that the next process need not load them."""
    _TABLES.keep()


class ExpertFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a mixture's experts: load of the busiest rank over the mean, how ranks exchange tokens."""

    skew: float | None = None
    exchange: ExpertExchange | None = None


class TableEstimator:
    """Memory and expected times of one model on one kind of device; see `planning.plan_ports.Estimator`."""

    def __init__(
        self, served: Serving, model: ModelShape, accelerator: Accelerator, *,
        cluster: Cluster | None, tables: KernelTables, experts: ExpertFacts,
    ) -> None:  # fmt: skip
        self._served = served
        self._model = model
        self._device = accelerator
        self._cluster = cluster
        self._tables = tables
        self._experts = experts
        self._operands = _operand_bits(model, served.precision)
        self._kv_bits = served.kv_bits or STORED_KV_BITS
        self._fits: dict[tuple[Layout, int], MemoryFit] = {}
        self._times: dict[Layout, StepTimes] = {}
        self._doubts: dict[Layout, tuple[str, ...]] = {}
        self._replicas: dict[tuple[Layout, Bounds], Replica] = {}
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
            bounds = Bounds(kv_tokens=self._held_tokens(fit, one, demand))
            doubts = (*draft_doubts(demand), *self._unjoined(one))
            self._expected[key] = doubted(self._replica(one, bounds).expected(demand), doubts)
        return self._expected[key]

    def _replica(self, layout: Layout, bounds: Bounds) -> Replica:
        key = (layout, bounds)
        if key not in self._replicas:
            times = self.times_of(layout)
            extra = self._extra(layout, times)
            pace = pace_of(self._served.engine)
            self._replicas[key] = Replica(times, layout, pace, bounds, extra)
        return self._replicas[key]

    def _held_tokens(self, fit: MemoryFit, layout: Layout, demand: Demand) -> float:
        """Return the tokens of streams at their mean context that the KV cache holds."""
        mean = demand.input_tokens + demand.output_tokens / 2.0
        longest = demand.context_tokens or demand.input_tokens + demand.output_tokens
        return mean * streams_at(self._model, fit, layout, longest=longest, mean=mean)

    def times_of(self, layout: Layout) -> StepTimes:
        """Return the step times of one replica in a layout: of the tables, else of a roofline."""
        if layout not in self._times:
            found = self._agreed(layout)
            self._times[layout] = (
                self._roofline(layout, found) if isinstance(found, NoTimes) else found
            )
        return self._times[layout]

    def _agreed(self, layout: Layout) -> StepTimes | NoTimes:
        """Return what the tables of the engine and of others agree on; where none has it, why its own do not."""
        found: dict[EngineKind, StepTimes] = {}
        refused = NoTimes(because=NO_KERNELS)
        servings = [msgspec.structs.replace(self._served, engine=engine) for engine in ENGINES]
        told = self._tables.times_of_all(servings, layout)
        for served, whole in zip(servings, told, strict=True):
            if isinstance(whole, NoTimes):
                refused = whole if served.engine is self._served.engine else refused
            else:
                ask = partial(self._tables.parted, served)
                found[served.engine] = self._shaped(whole, ask, layout)
        own = found.pop(self._served.engine, None)
        return AgreedTimes(own, tuple(found.values())) if own or found else refused

    def _roofline(self, layout: Layout, refused: NoTimes) -> StepTimes:
        def ask(asked: Layout) -> Parted:
            return parted_roofline(
                self._model,
                self._device,
                asked,
                operand_bits=self._operands,
                kv_share=self._kv_bits / 16.0,
                link=self._link(asked),
                because=refused.because,
            )

        return self._shaped(ask(layout).whole, ask, layout)

    def _shaped(
        self, whole: StepTimes, ask: Callable[[Layout], Parted | NoTimes], layout: Layout
    ) -> StepTimes:
        """Return a source's times of a layout; where ranks share experts with what is known of those."""
        dealt = layout.moe_ep > 1
        skew = self._experts.skew if dealt else None
        near = near_reference(layout) if dealt else None
        if layout.attention_dp == 1 and skew is None and near is None:
            return whole
        parted = ask(layout)
        if isinstance(parted, NoTimes):
            return whole
        return MixtureTimes(
            parted,
            layout,
            exchange=self._exchange(layout),
            skew=skew,
            even=_reference(ask, even_reference(layout) if skew else None),
            near=_reference(ask, near),
        )

    def _exchange(self, layout: Layout) -> Exchange | None:
        if self._cluster is None:
            return None
        kind, bits = self._experts.exchange, self._operands
        return exchange_of(kind, self._model, layout, self._cluster, operand_bits=bits)

    def _collective_ranks(self, layout: Layout) -> int:
        """How many ranks reduce together: of experts dealt out over a network the tables know the exchange."""
        ranks = layout.tp * layout.attention_dp
        wide = self._cluster is not None and ranks > self._cluster.devices
        return layout.tp if layout.moe_ep > 1 and (wide or self._exchange(layout)) else ranks

    def _unjoined(self, layout: Layout) -> tuple[str, ...]:
        """What is left out of a layout's messages, as links are not known."""
        if layout not in self._doubts:
            link = self._link(layout) if self._collective_ranks(layout) > 1 else None
            self._doubts[layout] = tuple(link_doubts(layout, self._cluster, link))
        return self._doubts[layout]

    def _link(self, layout: Layout) -> Link | None:
        """The link that the ranks of a stage talk over: between nodes where they do not fit into one."""
        if self._cluster is None:
            return _own_link(self._device)
        spread = self._collective_ranks(layout) > self._cluster.devices
        return (self._cluster.node_link or self._cluster.link) if spread else self._cluster.link

    def _extra(self, layout: Layout, times: StepTimes) -> Extra:
        """Return what a slower link adds; the roofline has its link in it already."""
        link, own = self._link(layout), _own_link(self._device)
        ranks = self._collective_ranks(layout)
        if times.source is EstimateSource.ROOFLINE or ranks < 2 or link is None or own is None:
            return Extra()
        if not link.bytes_per_s or not own.bytes_per_s:
            return Extra()
        if link.bytes_per_s >= _SLOWER_SHARE * own.bytes_per_s:
            return Extra()
        at = {n: collective_ms(self._model, ranks, n, link) - collective_ms(self._model, ranks, n, own)
              for n in (0, 1000)}  # fmt: skip
        return Extra(step_ms=max(0.0, at[0]), token_ms=max(0.0, (at[1000] - at[0]) / 1000.0))


def _reference(
    ask: Callable[[Layout], Parted | NoTimes], other: tuple[Layout, float] | None
) -> Reference | None:
    found = None if other is None else ask(other[0])
    if other is None or found is None or isinstance(found, NoTimes):
        return None
    return Reference(times=found, tokens_ratio=other[1])


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
    experts: ExpertFacts | None = None,
) -> TableEstimator:
    """Return the estimator of a model on a kind of device.

    `model` has its precision applied already; `model_name`: what the model was called, a name or a folder, to look for
    its kernels. `kv_bits` None: 16, as engines take unless told. `tables`: where measured times come from; the
    installed package unless told otherwise. `cluster` None: the device's own links. `experts` None: nothing is known.
    """
    served = Serving(
        model=model_name,
        system=accelerator.name,
        engine=engine,
        precision=precision,
        kv_bits=kv_bits or STORED_KV_BITS,
    )
    return TableEstimator(
        served,
        model,
        accelerator,
        cluster=cluster,
        tables=tables or _TABLES,
        experts=experts or ExpertFacts(),
    )
