"""What a lossy lever says is not lowered, checked against what its artifact really holds.

A recipe that ignores `lm_head` lowers `language_model.lm_head`, and nobody is told. So the weights of the artifact are
read before anything is exposed, and each rule must name some of them, held as wide as the baseline holds them.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from trimtab.core.keep_rules import is_pattern, nothing_kept, rule_matches
from trimtab.core.lever import LeverRecordError

_SUFFIX: Final = ".weight"
UNQUANTIZED_BITS: Final = 16.0
"""What a weight must have where the baseline has none of its name."""


def check_kept(
    rules: Sequence[str], held: Mapping[str, float], before: Mapping[str, float]
) -> None:
    """Raise `LeverRecordError` for a rule that matches nothing, or whose weights were lowered.

    `held`, `before`: bits a weight, by its name, of the candidate's and of the baseline's artifact.
    """
    full = {_module(name): name for name in held}
    bits = {_module(name): each for name, each in held.items()}
    wide = {_module(name): each for name, each in before.items()}
    for at, rule in enumerate(rules):
        path = f"$.revision.keep[{at}]"
        # A pattern is left whole: what looks like a suffix of it may be a part of its syntax.
        named = rule if is_pattern(rule) else _module(rule)
        also = tuple(full.values()) if is_pattern(rule) else ()
        more = partial(_told_bits, bits)
        wrong = nothing_kept(named, tuple(bits), also=also, called="rule", more=more)
        if wrong is not None:
            raise LeverRecordError(f"{path}: {wrong}")
        for module in (
            one for one in bits if rule_matches(named, one) or rule_matches(named, full[one])
        ):
            least = wide.get(module, UNQUANTIZED_BITS)
            if bits[module] < least:
                raise LeverRecordError(
                    f"{path}: {module} is held at {bits[module]:.3g} bits, where {least:.3g} were to stay: it was "
                    "lowered although the rule names it"
                )


def _module(name: str) -> str:
    return name.removesuffix(_SUFFIX)


def _told_bits(bits: Mapping[str, float], near: Sequence[str]) -> str:
    """Say how wide those that were perhaps meant are."""
    told = [f"{name} at {bits[name]:.3g} bits" for name in near]
    return f" ({', '.join(told)})" if told else ""
