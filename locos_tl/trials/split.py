"""`split_by_needle`: trials for ranking, calibration and evaluation that share no needle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .trial import Trial, TrialGrid


def split_by_needle(
    trials: TrialGrid | Sequence[Trial], shares: Sequence[float | int], seed: int = 42
) -> list[list[Trial]]:
    """Part trials so that no needle is in two parts: heads ranked on one part are new to the others.

    All trials of a needle, at whatever length and depth, stay together. A trial without a needle id goes with those
    that have the same prompt.

    Args:
        trials: a grid is read with the tokenizer it is bound to.
        shares: how much of the trials each part should get, such as (0.4, 0.2, 0.4); only their proportions count.
        seed: draws which needle goes where.

    Returns:
        A list of trials for each share, each in the order given; as near to the shares as whole needles allow.

    Raises:
        ValueError: for shares that are not positive, or fewer needles than parts.
    """
    if not shares or not all(share > 0 for share in shares):
        raise ValueError(f"shares must be positive numbers, got {tuple(shares)}")
    ordered = list(trials)
    groups: dict[str, list[int]] = {}
    for index, trial in enumerate(ordered):
        groups.setdefault(trial.needle_id or trial.prompt_digest(), []).append(index)
    if len(groups) < len(shares):
        raise ValueError(f"{len(ordered)} trials of {len(groups)} needles cannot be split into {len(shares)} parts")
    wanted = np.array(shares, float) / sum(shares) * len(ordered)
    parts: list[list[int]] = [[] for _ in shares]
    names = list(groups)
    for turn, which in enumerate(np.random.default_rng(seed).permutation(len(names))):
        missing = wanted - [len(part) for part in parts]
        empty = [i for i, part in enumerate(parts) if not part]
        if len(names) - turn == len(empty):  # the last needles go where there is none yet
            missing[[i for i in range(len(parts)) if i not in empty]] = -np.inf
        parts[int(missing.argmax())] += groups[names[which]]
    return [[ordered[i] for i in sorted(part)] for part in parts]
