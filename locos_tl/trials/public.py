"""Public data that is read where it lies: a folder of yours, the Hub's cache, or the Hub; never bundled."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..models.hub import PROBE_SECONDS, hub_reachable

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublicData:
    """A data set on the Hub.

    Attributes:
        name: as in `load_trials`.
        repo_id: Hub id.
        files: patterns of the files that are fetched; a copy without a match for each is not complete. Patterns joined
            by "|" are layouts of which one will do.
        licence: one remark for the user.
    """

    name: str
    repo_id: str
    files: tuple[str, ...]
    licence: str


def dataset_folder(data: PublicData, path: str | Path | None = None) -> Path:
    """The folder that holds a data set, without waiting for a Hub that is away.

    1. ``path``, if given; 2. the copy in the Hub's cache, so that a run reads the same files as the one
    before; 3. the Hub, after a probe of a few seconds.

    Raises:
        FileNotFoundError: when there is nothing at ``path``, or no copy and no Hub; names ``path`` as the cure.
    """
    if path is not None:
        return existing(path)
    cached = _snapshot(data, local_only=True)
    if cached is not None:
        return cached
    if not hub_reachable():
        raise FileNotFoundError(_advice(data, "the Hub cannot be reached"))
    try:
        return _download(data)
    except Exception as error:  # the client's errors have no common base; all end in the same advice
        reason = (str(error).strip() or "no reason given").splitlines()[0][:120]
        raise FileNotFoundError(_advice(data, f"the Hub did not give it ({reason})")) from error


def existing(path: str | Path) -> Path:
    """The path of a file or folder that is there.

    Raises:
        FileNotFoundError: when it is not.
    """
    found = Path(path).expanduser()
    if not found.exists():
        raise FileNotFoundError(f"no file or folder at {str(found)!r}")
    return found


def numbered(paths: Sequence[Path]) -> list[Path]:
    """Paths in the order of the numbers in their names: part2 comes before part10."""

    def key(path: Path) -> list[str | int]:
        return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", path.name))]

    return sorted(paths, key=key)


def _download(data: PublicData) -> Path:
    from huggingface_hub import HfApi

    HfApi().dataset_info(data.repo_id, timeout=PROBE_SECONDS)  # a host that accepts but never answers
    log.info("fetching %s from the Hub (%s)", data.repo_id, data.licence)
    folder = _snapshot(data, local_only=False)
    if folder is None:
        raise FileNotFoundError(f"the repository lacks {' or '.join(data.files)}")
    return folder


def _snapshot(data: PublicData, local_only: bool) -> Path | None:
    """A snapshot in the Hub's cache that holds every file, or None."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = [pattern for choice in data.files for pattern in choice.split("|")]
    try:
        folder = snapshot_download(
            data.repo_id, repo_type="dataset", allow_patterns=patterns, local_files_only=local_only
        )
    except LocalEntryNotFoundError:
        if not local_only:
            raise
        return None
    found = Path(str(folder))
    there = (any(any(found.glob(pattern)) for pattern in choice.split("|")) for choice in data.files)
    return found if all(there) else None


def _advice(data: PublicData, why: str) -> str:
    return (
        f"{data.name}: {why}, and there is no copy in the local cache. Fetch the data set {data.repo_id!r} on a "
        f"machine that has access and give its folder: path=... (--path on the command line). {data.licence}"
    )
