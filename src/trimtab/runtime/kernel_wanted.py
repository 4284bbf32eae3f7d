"""What a specification of the kernel tables' package asks tables for: widths, shapes and sizes, by exact keys."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

SHAPE: Final = ("topk", "num_experts", "hidden_size", "inter_size")
_SHAPES: Final = frozenset(SHAPE)
_HEAD_SIZES: Final = frozenset(("head_size", "head_dim", "v_head_dim"))
_WINDOW: Final = "window_size"
_SAME_TABLE: Final = {"fp8_static": "fp8"}
"""Widths that the package looks up under another name."""

_MODULE: Final = ("kv_cache_dtype", "gemm_quant_mode")
_MODULES: Final = frozenset(_MODULE)
_MATRIX: Final = frozenset(("n", "k", "quant_mode"))
_TIMED_ALONE: Final = frozenset(
    (
        "ContextAttention",
        "ContextMla",
        "CustomAllReduce",
        "Elementwise",
        "Embedding",
        "Fallback",
        "Gemm",
        "GenerationAttention",
        "GenerationMla",
        "MlaBmm",
        "MlaModuleContext",
        "MlaModuleGeneration",
        "Moe",
        "MoeDispatch",
        "Nccl",
        "Overlap",
        "P2P",
    )
)
"""Kinds of operations that ask for no matrix besides those that they name."""

_UNASKED: Final = frozenset(
    (
        "encoder_attention",
        "kda",
        "linear_attention",
        "mhc",
        "mlp",
        "msa",
        "sparse_attention",
    )
)
"""Families of tables that none of those kinds asks."""

_ASKED_BY: Final = {"attention": "Attention", "mla": "Mla", "mla_bmm": "Mla", "moe": "Moe"}
"""Families of tables that only kinds of operations with such a word in their name ask."""

_OPERATIONS_MAX: Final = 4096
"""Operations that are remembered with what they ask for."""

_PARTS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LISTED: Final = msgspec.json.Decoder(list[msgspec.Raw])

_T = TypeVar("_T")

Experts = tuple[str, int, int, int, int]
"""Width, empty where it is not told, and a shape as in `SHAPE`."""

Matrix = tuple[str, int, int]
"""Width, columns and rows of a matrix."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that a model asks for. Too many do no harm, too few would.

    `experts`: width and shape as in `SHAPE`; `copied_heads`: attention with as many KV heads as heads is among them.
    `modules`: widths of the cache and of the matrices of latent attention that was measured whole. `matrices`: width,
    columns and rows of each; none: an operation may ask for any. `families`: of those that only some kinds of
    operations ask, which are asked.
    """

    widths: tuple[str, ...]
    head_sizes: tuple[int, ...]
    windows: tuple[int, ...]
    copied_heads: bool
    experts: tuple[Experts, ...]
    modules: tuple[tuple[str, str], ...] = ()
    matrices: tuple[Matrix, ...] = ()
    families: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """All operations are of kinds of which it is known what they ask."""
        return bool(self.matrices)

    def asks(self, family: str) -> bool:
        """Say whether any operation may ask a family of tables."""
        if not self.known:
            return True
        return family not in _UNASKED and (family not in _ASKED_BY or family in self.families)


class _Asked(Wanted, frozen=True, kw_only=True):
    """What one operation asks for. `others`: it is of a kind, or holds one, of which that is not known."""

    others: bool


def wanted_by(spec: str) -> Wanted:
    """Return the keys that a specification of the package asks for, in whichever of its operations."""
    told: list[_Asked] = []
    for part in _PARTS.decode(spec).values():
        parts = _LISTED.decode(part) if bytes(part).startswith(b"[") else [part]
        told += [_asked(bytes(each)) for each in parts]
    return Wanted(
        widths=_all(each.widths for each in told),
        head_sizes=_all(each.head_sizes for each in told),
        windows=_all(each.windows for each in told),
        copied_heads=any(each.copied_heads for each in told),
        experts=_all(each.experts for each in told),
        modules=_all(each.modules for each in told),
        matrices=() if any(each.others for each in told) else _all(each.matrices for each in told),
        families=_all(each.families for each in told),
    )


def _all(told: Iterable[tuple[_T, ...]]) -> tuple[_T, ...]:
    return tuple(sorted(set().union(*told)))  # type: ignore[type-var]


@lru_cache(maxsize=_OPERATIONS_MAX)
def _asked(operation: bytes) -> _Asked:
    """Return what one operation asks for; layouts of a model have most of theirs in common."""
    widths: set[str] = set()
    heads: set[int] = set()
    windows = {0}
    experts: set[Experts] = set()
    modules: set[tuple[str, str]] = set()
    matrices: set[Matrix] = set()
    kinds: set[str] = set()
    copied = False
    for wide, facts in _objects(msgspec.json.decode(operation)):
        names = facts.keys()
        if names >= _SHAPES:
            told = facts.get("quant_mode")
            topk, count, hidden, inter = (int(facts[each]) for each in SHAPE)
            experts.add((told if isinstance(told, str) else "", topk, count, hidden, inter))
        if names >= _MATRIX:
            matrices.add((_looked_up(facts["quant_mode"]), int(facts["n"]), int(facts["k"])))
        if names >= _MODULES:
            cache, matrix = (_looked_up(facts[each]) for each in _MODULE)
            modules.add((cache, matrix))
        copied = copied or ("n_kv" in facts and facts["n_kv"] == facts.get("n"))
        for key, value in facts.items():
            if isinstance(value, str) and (wide or _says_width(key)):
                widths.update((value, _looked_up(value)))
            elif isinstance(value, dict) and key[:1].isupper():
                kinds.add(key)
        heads.update(facts[each] for each in names & _HEAD_SIZES if isinstance(facts[each], int))
        if isinstance(facts.get(_WINDOW), int):
            windows.add(facts[_WINDOW])
    return _Asked(
        widths=tuple(widths),
        head_sizes=tuple(heads),
        windows=tuple(windows),
        copied_heads=copied,
        experts=tuple(experts),
        modules=tuple(modules),
        matrices=tuple(matrices),
        families=tuple(
            family for family, word in _ASKED_BY.items() if any(word in kind for kind in kinds)
        ),
        others=not kinds <= _TIMED_ALONE,
    )


def _objects(whole: object) -> Iterator[tuple[bool, dict[str, Any]]]:
    """Yield every object, and whether a name above it says that its texts are widths; lists as objects of theirs."""
    left = [(False, whole)]
    while left:
        wide, node = left.pop()
        if isinstance(node, list):
            node = {str(place): value for place, value in enumerate(node)}
        if isinstance(node, dict):
            yield wide, node
            left += [
                (wide or _says_width(key), value)
                for key, value in node.items()
                if isinstance(value, dict | list)
            ]


def _says_width(key: str) -> bool:
    return "quant" in key or "dtype" in key


def _looked_up(width: str) -> str:
    return _SAME_TABLE.get(width, width)
