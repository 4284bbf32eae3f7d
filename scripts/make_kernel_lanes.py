"""Writes `kernel_lanes.json`: how much was measured of each attention kernel, for the installed kernel tables.

    python scripts/make_kernel_lanes.py [--check]

Asking the package takes a second for each device and engine, and the answer depends on its version alone.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from trimtab.runtime.kernel_names import ENGINES, package_systems
from trimtab.runtime.kernel_sdk import LANES_FILE, MODES, Density, Lanes, open_tables, sdk, version

TARGET = Path(__file__).parents[1] / "src" / "trimtab" / "runtime" / LANES_FILE
TABLES = ("_context_attention_data", "_generation_attention_data")


def densities(
    system: str, engine: str
) -> tuple[str, dict[str, Density], dict[str, Density]] | None:
    """Return the key of a device and engine, and what all and its own versions measured; None without tables."""
    opened: Any = open_tables(system, engine, MODES[0])
    if opened is None:
        return None
    opened.__dict__.pop("_attention_lane_density_cache", None)
    sdk()
    from aiconfigurator_core.sdk.engine_table_view import fetch_attention_lane_density as fetch

    shared = {table: dict(fetch(opened, table)) for table in TABLES}
    own = {table: dict(fetch(opened, table, shared_layer=False)) for table in TABLES}
    return f"{system} {engine} {opened.version}", shared, own


def made() -> Lanes:
    """Return the densities of all devices and engines."""
    shared: dict[str, dict[str, Density]] = {}
    own: dict[str, dict[str, Density]] = {}
    for system in package_systems():
        for engine in ENGINES.values():
            found = densities(system, engine)
            if found is not None:
                shared[found[0]], own[found[0]] = found[1], found[2]
    return Lanes(package=version(), shared=shared, own=own)


def main() -> int:
    """Write the file, or say whether it is what would be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare; 1 where it differs")
    checking = parser.parse_args().check
    text = msgspec.json.format(msgspec.json.encode(made()), indent=1) + b"\n"
    if checking:
        return 0 if TARGET.read_bytes() == text else 1
    TARGET.write_bytes(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
