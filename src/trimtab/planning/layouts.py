"""Which layouts a model and a cluster allow at all, and why the others cannot be: sizes only, no times.

Laws, checked before anything starts:
    tensor parallel     divides the heads; KV heads divide over the ranks or are copied evenly to them
    expert parallel     needs experts, and divides them
    attention data parallel   is for mixtures of experts: copies of a dense model that share nothing are replicas
    pipeline            has a layer for each stage; where the layers do not divide, some stages have one more
    a group of devices  lies within a node, or takes whole nodes

Experts are dealt out whole over all ranks of a stage, or each is cut over all of them: engines do one or the other.
"""

from collections.abc import Iterator

import msgspec

from trimtab.core.layout import Cluster, Layout, PlanInputError
from trimtab.core.served import ModelShape
from trimtab.diagnosis.roofline_layout import layout_sizes
from trimtab.planning.model_parts import vocabulary_divides

DEVICES_MAX = 4096
"""A cluster beyond this is planned in parts."""

STAGES_ODD_MAX = 8
"""Up to so many stages other numbers than powers of two are looked at, where they divide the layers."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes that the person fixed; None leaves them to the plan."""

    tp: int | None = None
    pp: int | None = None
    attention_dp: int | None = None
    moe_ep: int | None = None
    replicas: int | None = None

    @property
    def any(self) -> bool:
        """Whether something is fixed."""
        return any(getattr(self, name) is not None for name in self.__struct_fields__)


class Impossible(msgspec.Struct, frozen=True, kw_only=True):
    """A size that cannot be and why. `nearest`: what is possible next to it."""

    what: str
    because: str
    nearest: tuple[str, ...] = ()


class Possible(msgspec.Struct, frozen=True, kw_only=True):
    """Layouts of one replica that the sizes allow, the fewest devices first, and what they do not allow."""

    layouts: tuple[Layout, ...]
    impossible: tuple[Impossible, ...]


def possible_layouts(model: ModelShape, cluster: Cluster, fixed: Sizes | None = None) -> Possible:
    """Return every layout of one replica; raises `PlanInputError` for a fixed size that cannot be."""
    fixed = fixed or Sizes()
    _check(model, cluster)
    heads, layers = model.heads or 1, model.layers or 1
    _check_fixed(model, cluster, fixed)
    sizes = layout_sizes(heads, model.kv_heads, cluster.total).allowed
    tensor = [size for size in sizes if vocabulary_divides(model, size)]
    stages = _stage_counts(layers, cluster, fixed)
    found = {
        layout
        for tp in tensor
        for dp in _data_sizes(model, cluster, tp)
        for pp in stages
        for layout in _with_experts(model, tp, dp, pp)
        if placed_replicas(layout, cluster) >= (fixed.replicas or 1) and _wanted(layout, fixed)
    }
    order = sorted(found, key=lambda each: (each.devices_per_replica, each.pp, each))
    if not order:
        raise PlanInputError(
            "hardware",
            f"no layout of the sizes asked for lies on {cluster.total} devices in {cluster.nodes} nodes",
            (f"{_smallest(fixed)} devices",),
        )
    return Possible(layouts=tuple(order), impossible=tuple(_impossible(model, cluster)))


def placed_replicas(layout: Layout, cluster: Cluster) -> int:
    """Return how many replicas of a layout lie on a cluster: whole groups in a node, or whole nodes for a group.

    A group of several nodes keeps its tensor-parallel ranks of a stage on as few nodes as hold them.
    """
    group = layout.devices_per_replica
    if group <= cluster.devices:
        return cluster.devices // group * cluster.nodes
    if group % cluster.devices:
        return 0
    return cluster.nodes // (group // cluster.devices)


def spans_nodes(layout: Layout, cluster: Cluster) -> bool:
    """Say whether one replica needs more than one node."""
    return layout.devices_per_replica > cluster.devices


def tensor_spans_nodes(layout: Layout, cluster: Cluster) -> bool:
    """Say whether matrices are cut across nodes, of experts too, and not only stages or whole experts dealt out."""
    return max(layout.tp, layout.moe_tp) > cluster.devices


def _check(model: ModelShape, cluster: Cluster) -> None:
    for name, value in (("layers", model.layers), ("heads", model.heads)):
        if value is None or value < 1:
            told = "unknown" if value is None else str(value)
            raise PlanInputError(f"model.{name}", f"{name} of {model.name} are {told}", ("1",))
    if cluster.devices < 1 or cluster.nodes < 1 or cluster.total > DEVICES_MAX:
        raise PlanInputError(
            "hardware",
            f"{cluster.devices} devices on each of {cluster.nodes} nodes cannot be planned",
            ("1", str(DEVICES_MAX)) if cluster.total > DEVICES_MAX else ("1",),
        )


def _check_fixed(model: ModelShape, cluster: Cluster, fixed: Sizes) -> None:
    """Refuse the first fixed size that cannot be, with the sizes next to it that can."""
    if fixed.tp is not None:
        sizes = layout_sizes(model.heads or 1, model.kv_heads, max(cluster.total, 2 * fixed.tp))
        for refused in sizes.refused:
            if refused.size == fixed.tp:
                near = tuple(str(size) for size in sizes.nearest(fixed.tp))
                raise PlanInputError("tp", refused.because, near)
        if not vocabulary_divides(model, fixed.tp):
            near = tuple(str(size) for size in sizes.nearest(fixed.tp))
            raise PlanInputError("tp", _vocabulary_words(model, fixed.tp), near)
    if fixed.moe_ep is not None and fixed.moe_ep > 1:
        because = _why_no_experts(model, fixed.moe_ep)
        if because:
            raise PlanInputError("ep", because, _near_divisors(model.experts or 1, fixed.moe_ep))
    if fixed.attention_dp is not None and fixed.attention_dp > 1 and not model.experts:
        raise PlanInputError("dp", _DENSE_DP, ("1",))
    if fixed.pp is not None and fixed.pp > (model.layers or 1):
        raise PlanInputError(
            "pp", f"{model.layers} layers leave none for some of {fixed.pp} stages", (str(model.layers),)
        )  # fmt: skip
    needed = _smallest(fixed) * (fixed.replicas or 1)
    if needed > cluster.total:
        raise PlanInputError(
            "hardware", f"the sizes asked for take {needed} devices and there are {cluster.total}",
            (f"{needed} devices",),
        )  # fmt: skip


_DENSE_DP = "the model has no experts, and copies of it that share nothing are replicas"


def _smallest(fixed: Sizes) -> int:
    """The fewest devices that a replica of fixed sizes takes."""
    ranks = (fixed.tp or 1) * (fixed.attention_dp or 1)
    return max(ranks, fixed.moe_ep or 1) * (fixed.pp or 1)


def _wanted(layout: Layout, fixed: Sizes) -> bool:
    pairs = (
        (fixed.tp, layout.tp),
        (fixed.pp, layout.pp),
        (fixed.attention_dp, layout.attention_dp),
        (fixed.moe_ep, layout.moe_ep),
    )
    return all(asked is None or asked == size for asked, size in pairs)


def _data_sizes(model: ModelShape, cluster: Cluster, tp: int) -> Iterator[int]:
    """Numbers of attention groups: 1 for dense models; else a power of two of ranks or of nodes, or all nodes."""
    yield 1
    if not model.experts:
        return
    for dp in range(2, cluster.total // tp + 1):
        nodes, rest = divmod(tp * dp, cluster.devices)
        whole = not rest and (_power_of_two(nodes) or nodes == cluster.nodes)
        if whole or _power_of_two(tp * dp):
            yield dp


def _stage_counts(layers: int, cluster: Cluster, fixed: Sizes) -> list[int]:
    """Numbers of stages: powers of two, the few that divide the layers, one for each node, and the one asked for."""
    most = min(layers, cluster.total)
    return [
        count
        for count in range(1, most + 1)
        if _power_of_two(count)
        or (layers % count == 0 and count <= STAGES_ODD_MAX)
        or count in (cluster.nodes, fixed.pp)
    ]


def _power_of_two(count: int) -> bool:
    return count > 0 and count & (count - 1) == 0


def _with_experts(model: ModelShape, tp: int, dp: int, pp: int) -> Iterator[Layout]:
    ranks = tp * dp
    if not model.experts:
        yield Layout(tp=tp, pp=pp)
        return
    yield Layout(tp=tp, attention_dp=dp, pp=pp, moe_tp=ranks)
    if ranks > 1 and model.experts % ranks == 0:
        yield Layout(tp=tp, attention_dp=dp, pp=pp, moe_ep=ranks)


def _why_no_experts(model: ModelShape, size: int) -> str:
    """Say why experts cannot be dealt out over `size` ranks; empty if they can."""
    if not model.experts:
        return "the model has no experts to deal out"
    if model.experts % size:
        return f"{model.experts} experts do not divide over {size} ranks"
    return ""


def _impossible(model: ModelShape, cluster: Cluster) -> Iterator[Impossible]:
    """Give what the model's sizes forbid, of sizes that a node or the cluster would have room for."""
    sizes = layout_sizes(model.heads or 1, model.kv_heads, cluster.total)
    for refused in sizes.refused:
        if refused.size > cluster.devices and refused.size % cluster.devices:
            continue
        support = " (only where the engine copies KV heads unevenly)" * refused.with_kv_support
        yield Impossible(
            what=f"TP{refused.size}",
            because=refused.because + support,
            nearest=_near_layouts(sizes.nearest(refused.size), refused.size),
        )
    for size in sizes.allowed:
        if not vocabulary_divides(model, size):
            near = _near_layouts(sizes.nearest(size), size)
            yield Impossible(what=f"TP{size}", because=_vocabulary_words(model, size), nearest=near)
    yield from _impossible_experts(model, cluster)
    if cluster.total > (model.layers or 1):
        yield Impossible(
            what=f"PP{cluster.total}",
            because=f"{model.layers} layers leave none for some of {cluster.total} stages",
            nearest=(f"PP{model.layers}",),
        )


def _vocabulary_words(model: ModelShape, size: int) -> str:
    return f"the vocabulary of {model.vocabulary} tokens, padded to 64, does not divide over {size} ranks"


def _near_layouts(near: tuple[int, ...], size: int) -> tuple[str, ...]:
    """Name sizes next to a refused one; of one that divides it, how many replicas use as many devices."""
    return tuple(
        f"TP{each} x{size // each}" if each < size and size % each == 0 else f"TP{each}"
        for each in near
    )


def _impossible_experts(model: ModelShape, cluster: Cluster) -> Iterator[Impossible]:
    if not model.experts:
        yield Impossible(what="EP", because=_why_no_experts(model, 2))
        yield Impossible(what="DP", because=_DENSE_DP)
        return
    for size in _powers(cluster.total):
        because = _why_no_experts(model, size)
        if because:
            near = _near_divisors(model.experts, size)
            yield Impossible(
                what=f"EP{size}", because=because, nearest=tuple(f"EP{each}" for each in near)
            )


def _powers(most: int) -> Iterator[int]:
    size = 1
    while size <= most:
        yield size
        size *= 2


def _near_divisors(whole: int, size: int) -> tuple[str, ...]:
    """The divisors of `whole` next to `size`."""
    divisors = [each for each in range(1, whole + 1) if whole % each == 0]
    below = [each for each in divisors if each < size][-1:]
    above = [each for each in divisors if each > size][:1]
    return tuple(str(each) for each in (*below, *above))
