"""What architectures have that their configuration does not say, and a reader of counts out of a configuration."""

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from trimtab.core.ports import EngineFormatError

_COUNT_MAX: Final = 20_000_000


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What an architecture has that its configuration does not say; `defaults` for keys it may leave out.

    `gated`: the query projection carries a gate of the same width. `wide_norms`: norms of queries and keys span all
    heads. `latent`: multi-head latent attention.
    """

    tied: bool = False
    qkv_bias: bool = False
    head_norms: bool = False
    wide_norms: bool = False
    norms: int = 2
    output_bias: bool = False
    expert_bias: bool = False
    routing_bias: bool = False
    sinks: bool = False
    gated: bool = False
    latent: bool = False
    window_every: int = 0
    defaults: Mapping[str, int] = {}


_GEMMA3_DEFAULTS: Final = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
}
# What the makers' configuration classes take for a key that a file leaves out; without it a mixture would look dense.
_MIXTRAL_DEFAULTS: Final = {"num_local_experts": 8, "num_experts_per_tok": 2}
_QWEN2_MOE_DEFAULTS: Final = {"num_experts": 60, "num_experts_per_tok": 4}
_QWEN3_MOE_DEFAULTS: Final = {"num_experts": 128, "num_experts_per_tok": 8}
_GPT_OSS_DEFAULTS: Final = {"num_local_experts": 128, "num_experts_per_tok": 4}
_HYBRID: Final = Family(head_norms=True, gated=True)

# Names are `model_type` of Hugging Face configurations. `window_every` n: each n-th layer sees everything, the others
# a window; 1: all layers have the window.
FAMILIES: Final = {
    "llama": Family(),
    "granite": Family(),
    "phi3": Family(),
    "mistral": Family(window_every=1),
    "mixtral": Family(window_every=1, defaults=_MIXTRAL_DEFAULTS),
    "qwen2": Family(qkv_bias=True),
    "qwen2_moe": Family(qkv_bias=True, defaults=_QWEN2_MOE_DEFAULTS),
    "qwen3": Family(head_norms=True),
    "qwen3_moe": Family(head_norms=True, defaults=_QWEN3_MOE_DEFAULTS),
    "qwen3_vl_text": Family(head_norms=True),
    "qwen3_vl_moe_text": Family(head_norms=True),
    "qwen3_next": _HYBRID,
    "qwen3_5_text": _HYBRID,
    "qwen3_5_moe_text": _HYBRID,
    "gemma": Family(tied=True),
    "gemma2": Family(tied=True, norms=4, window_every=2),
    "gemma3_text": Family(
        tied=True, norms=4, head_norms=True, window_every=6, defaults=_GEMMA3_DEFAULTS
    ),
    "gpt_oss": Family(
        qkv_bias=True,
        output_bias=True,
        expert_bias=True,
        sinks=True,
        window_every=2,
        defaults=_GPT_OSS_DEFAULTS,
    ),
    "minimax_m2": Family(wide_norms=True, routing_bias=True),
    "glm4_moe": Family(routing_bias=True),
    "glm_moe_dsa": Family(latent=True),
    "deepseek_v2": Family(latent=True),
    "deepseek_v3": Family(latent=True),
    "deepseek_v32": Family(latent=True),
    "kimi_k2": Family(latent=True),
}


def _nearest_count(value: object) -> int:
    """Return the count that a value comes nearest to: a number that is written as words or with a point counts."""
    try:
        number = float(value) if isinstance(value, str | int | float) else 1.0
    except (ValueError, OverflowError):
        return 1
    return round(min(max(number, 1.0), _COUNT_MAX)) if math.isfinite(number) else 1


class Config:
    """Reads counts out of a configuration; a value that is no count is an error that names its key."""

    def __init__(self, data: Mapping[str, object], defaults: Mapping[str, int]) -> None:
        self._data = data
        self._defaults = defaults

    def count(self, *names: str) -> int | None:
        """Return the first of the names that is there; 0 and null are None."""
        told = any(name in self._data for name in names)
        for name in names:
            value = self._data.get(name) if told else self._defaults.get(name)
            if value is None or value is False:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                near = _nearest_count(value)
                raise EngineFormatError(
                    f"its {name} is {value!r} and no count; nearest valid: {near}"
                )
            if value > _COUNT_MAX:
                raise EngineFormatError(f"its {name} claims {value}; nearest valid: {_COUNT_MAX}")
            return value or None
        return None

    def need(self, *names: str) -> int:
        """Return a count that must be there."""
        found = self.count(*names)
        if found is None:
            zero = [name for name in names if self._data.get(name) == 0]
            what = f"its {zero[0]} is 0; nearest valid: 1" if zero else f"it has no {names[0]}"
            raise EngineFormatError(what)
        return found

    def above_zero(self, name: str) -> int | None:
        """Return a count that may be left out or null, but not be 0."""
        found = self.count(name)
        return self.need(name) if found is None and self._data.get(name) == 0 else found

    def default(self, *names: str) -> int | None:
        """Return what a configuration of this family has where it names none of a key's names."""
        return next((self._defaults[name] for name in names if name in self._defaults), None)

    def flag(self, name: str, default: bool) -> bool:
        """Return a truth value; null and absence are the default."""
        value = self._data.get(name)
        return value if isinstance(value, bool) else default

    def has(self, name: str) -> bool:
        """Say whether a key is there with a value."""
        return self._data.get(name) is not None

    def names(self, name: str) -> bool:
        """Say whether a key is there, null or not."""
        return name in self._data

    def get(self, name: str) -> object:
        """Return a value as it is."""
        return self._data.get(name)


def layer_kinds(config: Config, layers: int) -> list[object] | None:
    """Return the kind of each layer, None where none is named; more are those of layers that draft tokens."""
    kinds = config.get("layer_types")
    if not isinstance(kinds, list):
        return None
    if len(kinds) < layers:
        raise EngineFormatError(
            f"its layer_types names {len(kinds)} of {layers} layers; nearest valid: {layers} of them"
        )
    return kinds[:layers]


def linear_layers(config: Config, layers: int) -> int:
    """How many layers have linear attention and so a state instead of a KV cache."""
    kinds = layer_kinds(config, layers)
    if kinds is not None:
        return sum(kind == "linear_attention" for kind in kinds)
    every = config.count("full_attention_interval")
    if every is None or not config.has("linear_num_value_heads"):
        return 0
    return layers - layers // every


def experts_of(config: Config) -> tuple[int | None, int | None]:
    """Return routed experts of a layer and how many a token meets, both None for a dense model.

    A mixture of which one of the two is missing is an error; a number of experts that is 0 or null says dense, in a
    family that has dense models.
    """
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = config.count(*names)
    per_token = config.count("num_experts_per_tok", "experts_per_token")
    if experts and per_token and per_token > experts:
        raise EngineFormatError(
            f"its num_experts_per_tok is {per_token} of {experts} experts; nearest valid: {experts}"
        )
    usual = config.default(*names)
    zero = next((name for name in names if config.get(name) == 0), None)
    if not experts and usual and zero:
        raise EngineFormatError(
            f"its {zero} is 0 and its family has mixtures only; nearest valid: 1, usual: {usual}"
        )
    if experts and not per_token:
        raise EngineFormatError(f"it has {experts} experts and no num_experts_per_tok")
    if per_token and not experts and not any(config.names(name) for name in names):
        raise EngineFormatError(f"its tokens meet {per_token} experts and it has no {names[0]}")
    return (experts, per_token) if experts and per_token else (None, None)
