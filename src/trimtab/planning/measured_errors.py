"""How far estimates are from what servers do: what is believed of the error before anything is measured.

Few numbers for everything: no hardware, engine or model has one of its own. They were chosen to make measured rows of
public benchmarks most likely after 0, 2 and 4 of a group's rows are seen, and checked on models left out. A server's
own rows then move the correction (see `correction`).
"""

import math
from typing import Final

from trimtab.planning.correction import Phase, Prior
from trimtab.planning.intervals import Widths

PRIORS: Final = {
    Phase.DECODE: Prior(
        bias=0.0,
        level_sd=0.08,
        layout_sd=0.11,
        clients_sd=0.10,
        input_sd=0.08,
        output_sd=0.08,
        expected_sd=0.17,
        precision_sd=0.14,
        run_sd=0.12,
        noise_sd=0.06,
        layout_reach=3.0,
        clients_reach=2.8,
        tokens_reach=1.6,
        expected_reach=2.0,
        bound=math.log(3.0),
    ),
    Phase.FIRST_TOKEN: Prior(
        bias=0.1,
        level_sd=0.20,
        layout_sd=0.30,
        clients_sd=0.23,
        input_sd=0.25,
        output_sd=0.11,
        expected_sd=0.45,
        precision_sd=0.12,
        run_sd=0.15,
        noise_sd=0.12,
        layout_reach=3.7,
        clients_reach=2.0,
        tokens_reach=1.7,
        expected_reach=2.0,
        bound=math.log(8.0),
    ),
}
WIDTHS: Final = Widths(overall={Phase.DECODE: 2.2, Phase.FIRST_TOKEN: 2.2})
