"""Texts for the workloads: sources of the standard library, read through the import system."""

import importlib
import inspect

import pytest

MODULES = (
    "configparser",
    "optparse",
    "pstats",
    "shelve",
    "tempfile",
    "wave",
    "weakref",
    "xml.dom.minidom",
    "zipfile",
)


@pytest.fixture(scope="session")
def sources() -> dict[str, str]:
    """Whole texts of some standard library modules, by file name."""
    return {
        f"{name.replace('.', '/')}.py": inspect.getsource(importlib.import_module(name))
        for name in MODULES
    }
