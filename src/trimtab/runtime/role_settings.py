"""What replicas of a role run: the engine's settings, and those of `[roles.prefill_engine]` where they prefill.

Mixed and decode replicas are the same ones: they are called decode while another prefills for them, so both run
`[engine]`, and the name of a role that others changed restarts nobody.
"""

import msgspec

from trimtab.core.config import Config
from trimtab.core.config_roles import PrefillEngineConfig, RolesConfig
from trimtab.core.ports import LaunchError
from trimtab.core.revision import Revision
from trimtab.core.types import Role

_TABLE = "roles.prefill_engine"


class RoleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica runs in a role. `threads` 0: its share of the cores."""

    revision: Revision
    threads: int = 0


def settings_for(role: Role, config: RolesConfig, baseline: Revision) -> RoleSettings:
    """Return what a replica of a role runs; `baseline`: what those run that prefill for nobody."""
    own = config.prefill_engine
    if role is not Role.PREFILL:
        return RoleSettings(revision=baseline)
    revision = baseline.replace(
        chunk_tokens=own.chunk_tokens or baseline.chunk_tokens,
        speculation=baseline.speculation if own.speculation is None else own.speculation,
    )
    return RoleSettings(revision=revision, threads=own.threads)


def check_settings(config: Config, baseline: Revision, *, cores: int) -> None:
    """Check what can be known before a replica takes the role; raises `LaunchError` that names key and fix.

    It is asked at the start: a role that no replica can take should not be found out when traffic asks for it.
    """
    own = config.roles.prefill_engine
    if own == PrefillEngineConfig():
        return
    if own.threads > cores:
        raise LaunchError(
            f"{_TABLE}.threads = {own.threads} is more than the {cores} cores of this machine: lower it"
        )
    revision = settings_for(Role.PREFILL, config.roles, baseline).revision
    verified = revision.slots * (1 + (revision.speculation.draft_tokens_max or 0))
    if revision.speculation.is_on and verified > revision.chunk_tokens:
        raise LaunchError(
            f"replicas that prefill would verify {verified} tokens in a step ({revision.slots} slots that draft "
            f"{revision.speculation.draft_tokens_max or 0} tokens each), more than their chunk of "
            f"{revision.chunk_tokens}: raise {_TABLE}.chunk_tokens, or set "
            f'{_TABLE}.speculation = {{method = "off"}}'
        )


def settings_words(revision: Revision, threads: int) -> str:
    """Return what a replica runs in words."""
    drafts = revision.speculation.method.value.replace("_", " ")
    cores = "1 thread" if threads == 1 else f"{threads} threads"
    return f"{cores}, chunk {revision.chunk_tokens}, speculation {drafts}"
