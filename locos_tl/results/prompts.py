"""Which prompt a trial of a result was asked with: ids alone may name another prompt in another run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def prompts_by_trial(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Digest of the prompt of every trial that the provenance tells of; empty where it does not."""
    told = provenance.get("trials")
    told = told if isinstance(told, Mapping) else {}
    ids, prompts = told.get("ids"), told.get("prompts")
    if not isinstance(ids, list | tuple) or not isinstance(prompts, list | tuple) or len(ids) != len(prompts):
        return {}
    return dict(zip(map(str, ids), map(str, prompts), strict=True))


def other_prompts(a: Mapping[str, Any], b: Mapping[str, Any], trial_ids: Iterable[str]) -> list[str]:
    """Those of the trials that had another prompt in the one result than in the other, as far as both tell."""
    first, second = prompts_by_trial(a), prompts_by_trial(b)
    return [i for i in trial_ids if i in first and i in second and first[i] != second[i]]
