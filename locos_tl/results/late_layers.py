"""Are retrieval heads late because of how they are scored?

LOCOS measures only the direct path from a head to the logits, which could favour late layers by
construction. The total effect of a head, measured by patching, has no such preference. So:

1. the layer profile of each score map: the share of the positive mass that a layer holds. It is
   cross-fitted (`statistics.cross_fitted_mass`): the mean effects of heads that have none are positive in
   every second sample and spread over all layers, so of two equally late maps the noisier would look less
   late; cross-fitting takes this out;
2. two numbers that sum a profile up, mass in the last third and centre of mass, with bootstrap intervals,
   and their paired difference between total effect and LOCOS;
3. a permutation test over layers: could this much mass lie in the last third by chance?
4. beside them the plain statistics of the measured maps, noise included, and their Gini coefficient;
5. rank agreement of every map with the total effect, and the heads that LOCOS misses;
6. a verdict by a rule fixed beforehand (`LateLayers.verdict`).

Nothing here runs a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from .. import html
from . import statistics
from .files import read_result, result_path, usable, write_arrays
from .head_scores import HeadScores
from .layer_depth import Interval, Profile, depth_of, interval_of, rank_correlations
from .prompts import other_prompts
from .verdict import judge

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray

FILE = "late_layers.safetensors"
OVERLAPS = (10, 20, 50)
_DEPTHS = ("last_third", "centre_of_mass")
_EFFECTS = {
    "total": "total effect",
    "direct": "direct effect",
    "attribution": "attribution estimate of the total effect",
}
_SETTINGS: Mapping[str, Any] = {
    "reference": str,
    "causal": str,
    "n_resamples": int,
    "n_permutations": int,
    "margin": float,
    "seed": int,
}
MOST_DRAWS = 10**6
"""Resamples or permutations in a file: more would take all memory when its numbers are first asked for."""


def late_layers(
    maps: Mapping[str, HeadScores],
    *,
    reference: str = "locos",
    causal: str = "total",
    n_resamples: int = 1000,
    n_permutations: int = 10_000,
    margin: float = 0.1,
    seed: int = 0,
) -> LateLayers:
    """Compare the layer profiles of score maps with that of a causal effect.

    Args:
        maps: score maps by name, all over the same trials in the same order. Effects come in through
            `Effects.to_head_scores`.
        reference: the map whose late layers are in question.
        causal: the map that tells the truth about them: "total" for effects measured by patching, "attribution" for
            their gradient estimate, or a name of yours.
        n_resamples: bootstrap resamples of the trials, the same for all maps.
        n_permutations: permutations of the layers.
        margin: share of the mass by which the causal map may fall behind in the last third and still
            count as equally late.
        seed: seed of both.

    Raises:
        ValueError: when a map is missing, or the maps differ in trials or in size.
    """
    return LateLayers(dict(maps), reference, causal, n_resamples, n_permutations, margin, seed)


@dataclass(frozen=True, eq=False)
class LateLayers:
    """Layer profiles of several score maps, their statistics and what follows from them.

    The maps and settings are the result; all numbers are computed from them when first asked for, and
    are the same each time.

    Attributes:
        maps: score maps by name, over the same trials.
        reference: name of the map whose late layers are in question.
        causal: name of the causal map.
        n_resamples: bootstrap resamples.
        n_permutations: permutations of the layers.
        margin: see `late_layers`.
        seed: seed of resamples and permutations.
    """

    maps: Mapping[str, HeadScores]
    reference: str = "locos"
    causal: str = "total"
    n_resamples: int = 1000
    n_permutations: int = 10_000
    margin: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for role in ("reference", "causal"):
            if getattr(self, role) not in self.maps:
                raise ValueError(f"no {role} map {getattr(self, role)!r}; there are: {', '.join(self.maps) or 'none'}")
        if min(self.n_resamples, self.n_permutations) < 1 or not 0 <= self.margin < 1:
            raise ValueError("n_resamples and n_permutations must be at least 1, margin at least 0 and below 1")
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more, got {self.seed}")
        truth = self.maps[self.causal]
        for name, scores in self.maps.items():
            if scores.per_trial.shape[1:] != truth.per_trial.shape[1:]:
                sizes = [held.per_trial.shape[1:] for held in (scores, truth)]
                raise ValueError(
                    f"{name!r} and {self.causal!r} differ in size: {sizes[0]} and {sizes[1]} [layer, head]"
                )
            if scores.trial_ids != truth.trial_ids:
                raise ValueError(
                    f"{name!r} and {self.causal!r} are not over the same trials in the same order "
                    f"({scores.n_trials} and {truth.n_trials} trials)"
                )
            if changed := other_prompts(scores.provenance, truth.provenance, truth.trial_ids):
                raise ValueError(
                    f"{name!r} and {self.causal!r} are over other prompts: trial {changed[0]!r} has one in each"
                )

    # --- sizes ----------------------------------------------------------------------------------

    @property
    def n_trials(self) -> int:
        """Trials behind every map."""
        return self.maps[self.causal].n_trials

    @property
    def n_layers(self) -> int:
        """Layers of the model."""
        return self.maps[self.causal].n_layers

    @property
    def causal_name(self) -> str:
        """What the causal map is, in words: "total effect", "attribution estimate of the total effect"."""
        return _EFFECTS.get(self.causal, self.causal)

    @property
    def chance(self) -> float:
        """Mass in the last third when all layers hold the same: floor(n / 3) / n of n layers."""
        return self.n_layers // 3 / self.n_layers

    # --- numbers --------------------------------------------------------------------------------

    @cached_property
    def _resampled(self) -> Mapping[str, Float[Array, "resample layer head"]]:
        """Mean map of every resample. One seed and one number of trials: map by map the same trials."""
        return {
            name: statistics.resampled_means(s.counted, self.n_resamples, self.seed) for name, s in self.maps.items()
        }

    @cached_property
    def _spreads(self) -> Mapping[tuple[str, str], Float[Array, " resample"]]:
        """Every concentration statistic of every map in every resample."""
        return {
            (name, statistic): np.array([compute(mean) for mean in means])
            for name, means in self._resampled.items()
            for statistic, compute in statistics.CONCENTRATION.items()
        }

    def concentration(self, name: str, statistic: str = "last_third") -> Interval:
        """Mass in the last third, "centre_of_mass" or "gini" of a map as measured, noise included.

        Resampling adds noise, so the interval of a noisy map can lie beside its value.
        """
        value = statistics.CONCENTRATION[statistic](self.maps[name].mean)
        return interval_of(value, self._spreads[name, statistic])

    @cached_property
    def _masses(self) -> Mapping[str, tuple[Float[Array, " layer"], Float[Array, "resample layer"]]]:
        """Layer mass of every map, cross-fitted, and that of every resample; as measured for a single trial."""
        if self.n_trials < 2:
            return {
                name: (statistics.layer_mass(s.mean), np.full((self.n_resamples, self.n_layers), np.nan))
                for name, s in self.maps.items()
            }
        fit = statistics.cross_fitted_mass
        return {
            name: (
                fit(s.counted, self.n_resamples, self.seed).mean(0),
                fit(s.counted, self.n_resamples, self.seed, resample=True),
            )
            for name, s in self.maps.items()
        }

    @cached_property
    def profiles(self) -> Mapping[str, Profile]:
        """The layer profile of every map; zeros for a map without positive mass beyond noise."""
        found = {}
        for name, (mass, resampled) in self._masses.items():
            share, shares = (
                m / np.where(m.sum(-1, keepdims=True) > 0, m.sum(-1, keepdims=True), np.nan) for m in (mass, resampled)
            )
            known = shares[np.isfinite(shares).all(-1)]
            low, high = (
                np.quantile(known, [0.025, 0.975], axis=0) if len(known) else np.full((2, self.n_layers), np.nan)
            )
            found[name] = Profile(np.nan_to_num(share), low, high)
        return found

    def depth(self, name: str, statistic: str = "last_third") -> Interval:
        """Mass of a map's profile in the last third, or its "centre_of_mass" (0 first layer, 1 last).

        NaN where no positive mass is left, and bounds of NaN where that is so in too many resamples. As
        shares may be negative, the mass in the last third may pass 1.
        """
        mass, resampled = self._masses[name]
        return interval_of(depth_of(mass, statistic), depth_of(resampled, statistic))

    def difference(self, statistic: str = "last_third", name: str | None = None) -> Interval:
        """`depth` of the causal map minus that of another (default: the reference), paired by trials."""
        (mass, resampled), (other, others) = self._masses[self.causal], self._masses[name or self.reference]
        value = depth_of(mass, statistic) - depth_of(other, statistic)
        return interval_of(value, depth_of(resampled, statistic) - depth_of(others, statistic))

    @cached_property
    def p_values(self) -> Mapping[str, float]:
        """Of each map: how often layers in random order hold as much mass in the last third.

        With m of n permutations at least as late, p = (m + 1) / (n + 1).
        """
        late = self.n_layers - self.n_layers // 3
        rng = np.random.default_rng(self.seed)
        orders = rng.permuted(np.tile(np.arange(self.n_layers), (self.n_permutations, 1)), axis=1)[:, late:]
        found = {}
        for name, profile in self.profiles.items():
            reached = profile.share[orders].sum(1) >= profile.share[late:].sum() - 1e-12
            found[name] = float((reached.sum() + 1) / (self.n_permutations + 1))
        return found

    def agreement(self, name: str) -> Mapping[str, float]:
        """Spearman (with interval), Kendall and overlap at 10, 20 and 50 of a map with the causal one."""
        found = statistics.rank_agreement(self.maps[name].mean, self.maps[self.causal].mean, OVERLAPS)
        spread = rank_correlations(self._resampled[name], self._resampled[self.causal])
        interval = interval_of(found["spearman"], spread)
        return found | {"spearman_low": interval.low, "spearman_high": interval.high}

    def missed(self, n: int = 10, within: int = 20) -> pd.DataFrame:
        """Heads high in the causal map and low in the reference: among the first ``within`` of only the former.

        Args:
            n: heads to list at most, largest effect first.
            within: where "high" ends.

        Returns:
            One row a head: head ("L5H3"), both values and both ranks, the columns named by the maps (such as
            total, locos, total_rank, locos_rank). A head without a reference score has no rank there.
        """
        import pandas as pd

        truth, other = self.maps[self.causal], self.maps[self.reference]
        ranks = {head: rank for rank, head in enumerate(other.ranking(), 1)}
        rows = [
            (f"L{head[0]}H{head[1]}", float(truth.mean[head]), float(other.mean[head]), rank, ranks.get(head))
            for rank, head in enumerate(truth.ranking()[:within], 1)
            if truth.mean[head] > 0 and ranks.get(head, within + 1) > within
        ]
        columns = ["head", self.causal, self.reference, f"{self.causal}_rank", f"{self.reference}_rank"]
        return pd.DataFrame(rows[:n], columns=columns).astype({columns[-1]: "Int64"})

    # --- verdict --------------------------------------------------------------------------------

    @property
    def verdict(self) -> str:
        """Is the causal map as late as the reference? "holds", "does not hold" or "undecided".

        Fixed before looking:

        - "holds": the permutation test finds the causal map late (p < 0.05), and the lower bound of the
          difference in the last third (causal - reference) lies above -margin.
        - "does not hold": the upper bound of that difference lies below -margin, or the causal map's
          mass in the last third lies, with its whole interval, at or below chance.
        - "undecided": otherwise, and always below 10 trials, below 3 layers and without positive effects.
        """
        return self._judged[0]

    @property
    def reason(self) -> str:
        """The numbers behind the verdict, in a sentence or two."""
        return self._judged[1]

    @cached_property
    def _judged(self) -> tuple[str, str]:
        return judge(self)

    # --- tables ---------------------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """One row a map: numbers of its profile (``profile_…``) and of the plain map, p-value and agreement."""
        import pandas as pd

        rows = []
        for name in self.maps:
            row: dict[str, Any] = {"method": name}
            found = {f"profile_{statistic}": self.depth(name, statistic) for statistic in _DEPTHS}
            found |= {statistic: self.concentration(name, statistic) for statistic in statistics.CONCENTRATION}
            for column, interval in found.items():
                row |= {column: interval.value, f"{column}_low": interval.low, f"{column}_high": interval.high}
            row["p_value"] = self.p_values[name]
            rows.append(row | (dict(self.agreement(name)) if name != self.causal else {}))
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        return f"LateLayers({', '.join(self.maps)}; {self.n_trials} trials; {self.verdict}: {self.reason})"

    def _repr_html_(self) -> str:
        columns = [
            "method",
            "profile_last_third",
            "profile_centre_of_mass",
            "p_value",
            "gini",
            "spearman",
            "overlap@10",
        ]
        title = f"Late-layer concentration: {self.verdict}"
        return html.card(title, html.text(self.reason), html.frame(self.to_frame(), columns))

    # --- files ----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file with the maps, and the settings inside.

        Args:
            path: the file, or an existing folder for ``late_layers.safetensors`` in it.
        """
        path = result_path(path, FILE)
        arrays, about = {}, []
        for index, (name, scores) in enumerate(self.maps.items()):
            arrays[f"{index}.per_trial"], arrays[f"{index}.seen"] = scores.per_trial, np.asarray(scores.seen)
            fields = ("detector", "n_total", "n_key_value_heads", "provenance")
            about.append({"name": name} | {field: getattr(scores, field) for field in fields})
        settings = {name: getattr(self, name) for name in _SETTINGS}
        trial_ids = self.maps[self.causal].trial_ids
        write_arrays(path, arrays, {"kind": "LateLayers", "maps": about, "trial_ids": trial_ids, "settings": settings})
        return path

    @classmethod
    def load(cls, path: str | Path) -> LateLayers:
        """Read a file written by `save`.

        Raises:
            ResultFileError: when the file is missing, damaged or of another kind.
        """
        path = result_path(path, FILE)
        arrays, meta = read_result(path, "LateLayers")
        with usable(path, "LateLayers"):
            trial_ids = tuple(str(i) for i in meta["trial_ids"])
            maps = {
                str(about["name"]): HeadScores(
                    detector=str(about["detector"]),
                    per_trial=arrays[f"{index}.per_trial"],
                    trial_ids=trial_ids,
                    n_total=int(about["n_total"]),
                    n_key_value_heads=int(about["n_key_value_heads"]),
                    seen=arrays[f"{index}.seen"],
                    provenance=dict(about["provenance"]),
                )
                for index, about in enumerate(meta["maps"])
            }
            settings = {name: kind(meta["settings"][name]) for name, kind in _SETTINGS.items()}
            if max(settings["n_resamples"], settings["n_permutations"]) > MOST_DRAWS:
                raise ValueError(f"more than {MOST_DRAWS} resamples or permutations")
            return cls(maps, **settings)
