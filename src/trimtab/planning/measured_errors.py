"""How far estimates are from what servers do: what is believed of the error before anything is measured.

By source: times of kernel tables and of a roofline are off by different amounts.

The priors are few numbers for everything: no hardware, engine or model has one of its own. They were chosen to make
measured rows of public benchmarks most likely after 0, 2 and 4 of a group's rows are seen, and checked on models left
out. A server's own rows then move the correction (see `correction`). Widths are conformal quantiles (see `intervals`).
"""

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from trimtab.core.layout import EstimateSource
from trimtab.planning.correction import Phase, Prior
from trimtab.planning.intervals import Widths

PRIORS: Final = {
    Phase.DECODE: Prior(
        bias=0.0,
        level_sd=0.05,
        layout_sd=0.065,
        clients_sd=0.055,
        input_sd=0.05,
        output_sd=0.07,
        expected_sd=0.07,
        precision_sd=0.09,
        run_sd=0.06,
        noise_sd=0.055,
        layout_reach=2.3,
        clients_reach=2.3,
        tokens_reach=1.5,
        expected_reach=1.1,
        bound=math.log(3.0),
    ),
    Phase.FIRST_TOKEN: Prior(
        bias=0.0,
        level_sd=0.11,
        layout_sd=0.17,
        clients_sd=0.15,
        input_sd=0.20,
        output_sd=0.09,
        expected_sd=0.20,
        precision_sd=0.09,
        run_sd=0.17,
        noise_sd=0.10,
        layout_reach=3.3,
        clients_reach=1.7,
        tokens_reach=1.35,
        expected_reach=1.25,
        bound=math.log(8.0),
    ),
}
_OFF_BY_ROOFLINE: Final = {Phase.DECODE: (0.33, 0.72), Phase.FIRST_TOKEN: (0.39, 1.10)}
"""Of measured rows of public benchmarks asked of the roofline alone, their groups (31) weighted alike: the median of
measured over expected and the 90% quantile of the distance to it, natural logarithms. A device nobody measured is as
new to it as a group that was left out, so groups count alike and not rows (over rows: 0.47 and 0.88)."""


def roofline_off_by(phase: Phase) -> float:
    """Return how many times too high or too low the roofline's corrected times are in nine of ten cases."""
    return math.exp(_OFF_BY_ROOFLINE[phase][1])


def _off_as_far(prior: Prior, bias: float, reach: float, width: float) -> Prior:
    """Return a prior with a bias and deviations scaled so that an interval of `width` of them reaches that far."""
    names = [name for name in prior.__struct_fields__ if name.endswith("_sd")]
    whole = math.sqrt(sum(getattr(prior, name) ** 2 for name in names))
    scale = reach / width / whole
    wider = {name: scale * getattr(prior, name) for name in names}
    return msgspec.structs.replace(prior, bias=bias, **wider)


WIDTHS: Final = Widths(
    overall={
        Phase.DECODE: ((0, 1.85), (1, 2.2), (4, 2.35)),
        Phase.FIRST_TOKEN: ((0, 1.9), (1, 2.1), (4, 2.15)),
    },
    by_server={
        (Phase.DECODE, "b200_sxm", "trtllm"): 2.04,
        (Phase.DECODE, "b200_sxm", "vllm"): 1.33,
        (Phase.DECODE, "b300_sxm", "sglang"): 1.85,
        (Phase.DECODE, "gb200", "trtllm"): 4.85,
        (Phase.DECODE, "h100_sxm", "trtllm"): 1.20,
        (Phase.DECODE, "h100_sxm", "vllm"): 1.54,
        (Phase.DECODE, "h200_sxm", "sglang"): 1.84,
        (Phase.DECODE, "h200_sxm", "trtllm"): 1.74,
        (Phase.DECODE, "h200_sxm", "vllm"): 1.00,
        (Phase.FIRST_TOKEN, "b200_sxm", "trtllm"): 2.01,
        (Phase.FIRST_TOKEN, "b200_sxm", "vllm"): 1.48,
        (Phase.FIRST_TOKEN, "b300_sxm", "sglang"): 2.29,
        (Phase.FIRST_TOKEN, "gb200", "trtllm"): 3.90,
        (Phase.FIRST_TOKEN, "h100_sxm", "trtllm"): 1.31,
        (Phase.FIRST_TOKEN, "h100_sxm", "vllm"): 1.57,
        (Phase.FIRST_TOKEN, "h200_sxm", "sglang"): 1.78,
        (Phase.FIRST_TOKEN, "h200_sxm", "trtllm"): 1.96,
        (Phase.FIRST_TOKEN, "h200_sxm", "vllm"): 1.19,
    },
)
"""A server's own width is its measured quantile drawn halfway (in logarithms) to that of all servers; only servers that
two models or more were measured on have one."""

ROOFLINE_PRIORS: Final = {
    phase: _off_as_far(PRIORS[phase], bias, reach, WIDTHS.overall[phase][0][1])
    for phase, (bias, reach) in _OFF_BY_ROOFLINE.items()
}
EXTENDED_PRIORS: Final = {
    phase: _off_as_far(PRIORS[phase], PRIORS[phase].bias, reach, WIDTHS.overall[phase][0][1])
    for phase, (_, reach) in _OFF_BY_ROOFLINE.items()
}
"""No public row measures what a formula adds to tables: taken to be as unsure as the roofline, without its bias."""

ROUGH_WIDTHS: Final = Widths(overall=WIDTHS.overall)
ERRORS: Final[Mapping[EstimateSource, tuple[Mapping[Phase, Prior], Widths]]] = {
    EstimateSource.KERNEL_TABLES: (PRIORS, WIDTHS),
    EstimateSource.EXTENDED_TABLES: (EXTENDED_PRIORS, ROUGH_WIDTHS),
    EstimateSource.ROOFLINE: (ROOFLINE_PRIORS, ROUGH_WIDTHS),
}
"""By what an estimate rests on."""
