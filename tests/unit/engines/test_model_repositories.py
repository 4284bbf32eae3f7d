"""Owners of well-known models: every name that has a shape has a repository, and every repository has a shape."""

import pytest

from trimtab.engines.model_names import find_model_shape, known_names
from trimtab.engines.model_repositories import VARIANTS, find_repository


@pytest.mark.parametrize("name", known_names())
def test_every_known_name_has_a_repository_of_its_shape(name: str) -> None:
    """What is written for a name is a repository whose model has the very size that was planned."""
    found = find_repository(name)
    assert found is not None
    asked, published = find_model_shape(name), find_model_shape(found.name)
    assert asked is not None
    assert published is not None
    assert published.weight_bytes == asked.weight_bytes
    assert published.context_tokens_max == asked.context_tokens_max


def test_name_that_is_a_repository_is_exact_and_others_say_they_are_not() -> None:
    """One variant of several is taken, and whoever takes it is told."""
    exact, open_ = find_repository("qwen3-32b"), find_repository("gemma-3-27b")
    assert exact is not None
    assert open_ is not None
    assert (exact.name, exact.exact) == ("Qwen/Qwen3-32B", True)
    assert (open_.name, open_.exact) == ("google/gemma-3-27b-it", False)
    assert "gemma-3-27b" in VARIANTS


@pytest.mark.parametrize("name", ["Qwen/Qwen3-32B", "somebody/their-model"])
def test_owner_that_was_given_is_kept(name: str) -> None:
    """Somebody's copy is not replaced by the maker's."""
    found = find_repository(name)
    assert found is not None
    assert (found.name, found.exact) == (name, True)


def test_name_without_a_known_owner_has_no_repository() -> None:
    """No owner is made up."""
    assert find_repository("llama-3.1-8b-instruct-w4a16") is None
