"""Synthetic results shaped like real ones: no model, a fixed seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from locos_tl.results.head_scores import HeadScores
from locos_tl.results.late_layers import LateLayers, late_layers
from locos_tl.results.reading import HeadReading
from locos_tl.results.scores import Scores, TrialOutcome
from locos_tl.results.sweep import Sweep, SweepRow

DETECTORS = ("locos", "attention_spatial", "dla", "wu", "contrastive", "headkv", "random")

_FACTS = (
    ("Which character has spent time in Amsterdam?", "{} keeps a season ticket for the Rijksmuseum.", "onehop"),
    ("Which character has been to the Netherlands?", "{} keeps a season ticket for the Rijksmuseum.", "twohop"),
    ("Which character cannot eat bread?", "In truth, {} was found to have coeliac disease as a child.", "onehop"),
    ("Who owns the blue bicycle?", "The owner of the blue bicycle is {}.", "literal"),
)
_NAMES = ("Mara", "Ilias", "Noor", "Tobias", "Wen", "Saskia")
_WRONG = (
    "The text does not say which character it was.",
    "The story mentions a man with a lantern who walked along the harbour wall until the morning came.",
    "Amsterdam",
    "",
)


@pytest.fixture
def head_scores() -> Callable[..., HeadScores]:
    """Builds HeadScores from a [layer, head] or [trial, layer, head] array."""

    def build(values: object, detector: str = "locos", n_key_value_heads: int = 1, **more: object) -> HeadScores:
        array = np.asarray(values, np.float32)
        array = array[None] if array.ndim == 2 else array
        ids = tuple(f"trial-{i}" for i in range(len(array)))
        return HeadScores(detector, array, ids, more.pop("n_total", len(array)), n_key_value_heads, **more)  # type: ignore[arg-type]

    return build


@pytest.fixture(scope="session")
def make_scores() -> Callable[..., Scores]:
    """Builds a scoring run: late heads carry locos, early ones attention, some layers have a window."""
    return _make_scores


def _make_scores(
    n_layers: int = 30,
    n_heads: int = 9,
    n_key_value_heads: int = 3,
    detectors: Sequence[str] = DETECTORS,
    n_total: int = 48,
    n_passed: int = 19,
    model: str = "SmolLM2-135M-Instruct",
) -> Scores:
    rng = np.random.default_rng(7)
    passed = np.zeros(n_total, bool)
    passed[rng.permutation(n_total)[:n_passed]] = True
    ids = [f"nonliteral-{i:03d}" for i in range(n_total)]
    heads = {}
    for index, name in enumerate(detectors):
        rows = {"headkv": ids, "random": ["seed-42", "seed-43", "seed-44"]}.get(
            name, [i for i, ok in zip(ids, passed, strict=True) if ok]
        )
        if rows:
            values = _detector_values(rng, name, index, len(rows), n_layers, n_heads)
            seen = np.ones(values.shape, bool)
            if name not in ("random", "headkv"):
                seen[:, 4 : n_layers // 2 : 6] = False  # sliding-window layers
            heads[name] = HeadScores(name, values, tuple(rows), n_total, n_key_value_heads, seen=seen)
    outcomes = tuple(_outcome(i, identifier, bool(passed[i])) for i, identifier in enumerate(ids))
    provenance = {
        "date": "2026-11-30",
        "model": {"name": model, "revision": "7e27bd9f95328f0f3b08261d1252705110c806f8", "dtype": "float32"},
        "versions": {"locos_tl": "0.1.0", "transformer_lens": "4.3.0", "transformers": "5.22.0", "torch": "2.11.0"},
        "settings": {"variant": "paper", "gate": 50, "max_new_tokens": 50, "seed": 42, "lengths": [64, 256, 1000]},
    }
    return Scores(heads, outcomes, provenance)


def _detector_values(
    rng: np.random.Generator, name: str, index: int, n_rows: int, n_layers: int, n_heads: int
) -> np.ndarray:
    shape = (n_rows, n_layers, n_heads)
    if name == "random":
        return rng.random(shape, np.float32)
    depth = np.linspace(0, 1, n_layers)[:, None]
    centre = {"locos": 0.82, "dla": 0.86, "wu": 0.55, "contrastive": 0.5}.get(name, 0.35 + 0.03 * index)
    strength = np.exp(-(((depth - centre) / 0.14) ** 2)) * rng.gamma(0.35, 1.0, (n_layers, n_heads))
    noise = rng.normal(size=shape)
    if name in ("locos", "dla"):
        signed = strength * np.where(rng.random((n_layers, n_heads)) < 0.22, -0.5, 1.0)
        return (signed * (1 + 0.7 * noise) + 0.02 * noise).astype(np.float32)
    share = 0.3 * strength * (1 + 0.6 * noise)
    if name in ("wu", "contrastive"):
        share = np.where(strength > 0.3, share, 0.0)  # most heads never copy
    return share.clip(0, 1).astype(np.float32)


def _outcome(index: int, identifier: str, passed: bool) -> TrialOutcome:
    question, needle, kind = _FACTS[index % len(_FACTS)]
    name = _NAMES[index % len(_NAMES)]
    text = f"The character is {name}." if passed else _WRONG[index % len(_WRONG)]
    if not passed and index % 11 == 0:
        text = f"{name.upper()[0]} . {name[1:]}"
    return TrialOutcome(
        trial_id=identifier,
        passed=passed,
        gate_value=100.0 if passed or index % 11 == 0 else 0.0,
        generated_ids=tuple(range(6)),
        generated_text=text,
        answer_steps=(3,) if passed else (),
        answer=name,
        stop_token_id=2 if index % 5 else None,
        min_margin=0.004 if index % 17 == 3 else 0.4,
        trial={
            "question": question,
            "needle": needle.format(name),
            "kind": kind,
            "relation": "place" if "Rijksmuseum" in needle else "other",
            "length": (64, 256, 1000)[index % 3],
            "depth": (index // 3 % 5) / 4,
            "unique_share": (1.0, 1.0, 0.82)[index % 3],
        },
    )


@pytest.fixture(scope="session")
def make_sweep() -> Callable[..., Sweep]:
    """Builds an ablation sweep: locos kills retrieval, attention less so, random heads not at all."""
    return _make_sweep


_STRENGTH = {"locos": 14.0, "attention_spatial": 60.0, "dla": 30.0, "random": 4000.0, "bottom-locos": 3000.0}


def _make_sweep(
    methods: Sequence[str] = ("locos", "attention_spatial", "dla", "bottom-locos", "random"),
    ks: Sequence[int] = (1, 5, 10, 20, 50, 100),
    metrics: Sequence[str] = ("rouge_l", "contains"),
    n_trials: int = 40,
    strength: float = 1.0,
    level: float = 0.6,
    seed: int = 0,
) -> Sweep:
    rng = np.random.default_rng(seed)
    base = rng.beta(2 * level, 2 * (1 - level), n_trials)
    rows = []

    def add(method: str, k: int, left: float, seed: int | None = None) -> None:
        for i, value in enumerate(base):
            score = float(np.clip(value * left * (1 + 0.1 * rng.normal()), 0, 1)) if k else float(value)
            values = {metric: score if metric == "rouge_l" else float(score > 0.3) for metric in metrics}
            text = "The character is Mara." if score > 0.3 else "The text does not say."
            rows.append(SweepRow(method, k, f"nonliteral-{i:03d}", text, values, "Mara", seed))

    add("baseline", 0, 1.0)
    for method in methods:
        for k in ks:
            for control in (42, 43, 44) if method == "random" else (None,):
                add(method, k, float(np.exp(-k * strength / _STRENGTH[method])), control)
    rankings = {
        name: tuple((i % 30, i // 30) for i in range(max(ks)))
        for method in methods
        for name in ([f"random-{s}" for s in (42, 43, 44)] if method == "random" else [method])
    }
    model = {"name": "SmolLM2-135M-Instruct"}
    return Sweep(tuple(rows), rankings, {"model": model, "ablation": {"at": "q", "mode": "mean"}})


@pytest.fixture(scope="session")
def make_late() -> Callable[..., LateLayers]:
    """Builds a late-layer result: a total effect around ``centre`` (0 first layer, 1 last), locos late."""
    return _make_late


def _make_late(
    centre: float = 0.82, n_trials: int = 24, n_layers: int = 30, n_heads: int = 9, noise: float = 0.03, seed: int = 0
) -> LateLayers:
    rng = np.random.default_rng(seed)
    depth = np.linspace(0, 1, n_layers)[:, None]
    weight = rng.gamma(0.35, 1.0, (n_layers, n_heads))
    late, true = (np.exp(-(((depth - c) / 0.14) ** 2)) for c in (0.82, centre))
    other = rng.gamma(0.35, 1.0, (n_layers, n_heads))
    means = {"locos": late * weight, "total": true * (0.7 * weight + 0.4 * other)}
    means["direct"] = means["locos"] * 0.5
    means["attribution"] = means["total"] * 0.8 + 0.03
    ids = tuple(f"nonliteral-{i:03d}" for i in range(n_trials))
    maps = {}
    for name, mean in means.items():
        draws = rng.normal(size=(n_trials, n_layers, n_heads))
        maps[name] = HeadScores(name, (mean * (1 + 0.5 * draws) + noise * draws).astype(np.float32), ids, n_trials, 3)
    return late_layers(maps, n_resamples=200, n_permutations=2000)


@pytest.fixture(scope="session")
def make_reading() -> Callable[..., HeadReading]:
    """Builds a reading of one trial: the last layers write from the needle's first token, which is their peak."""
    return _make_reading


def _make_reading(
    trial_id: str = "nonliteral-000",
    n_layers: int = 30,
    n_heads: int = 9,
    n_keys: int = 120,
    kept: Sequence[int] | None = None,
    n_own: int = 0,
    variants: Sequence[str] = ("paper", "exact"),
    word: str = "word",
    seed: int = 3,
) -> HeadReading:
    rng = np.random.default_rng(seed)
    shared = np.arange(n_keys) if kept is None else np.asarray(kept)
    cells, needle = (n_layers, n_heads), (40, 48)
    attention = rng.dirichlet(np.full(len(shared), 0.2), cells).astype(np.float32)
    phi = rng.normal(0, 0.05, (len(variants), *cells, len(shared))).astype(np.float32)
    peak = int(np.flatnonzero(shared == needle[0])[0])
    phi[..., peak] = np.linspace(0.5, 3, n_layers)[:, None]
    rest = np.setdiff1d(np.arange(n_keys), shared)
    own = np.full((*cells, n_own), -1)
    if n_own:
        own[..., : n_own - 1] = np.sort(rng.permuted(np.tile(rest, (*cells, 1)), axis=-1)[..., : n_own - 1], -1)
    words = rng.integers(0, 50, (2, *cells, 10))
    logits = np.sort(rng.gamma(1, 1, (2, *cells, 10)), -1)[..., ::-1]
    ids = tuple(range(n_keys + 2))
    return HeadReading(
        trial_id=trial_id,
        ids=ids,
        tokens=tuple(f" {word}{i}" if i else "<s>" for i in ids),
        n_prompt=n_keys - 1,
        needle_span=needle,
        answer_steps=(1,),
        n_keys=n_keys,
        variants=tuple(variants),
        shared=shared,
        attention=attention,
        phi=phi,
        own=own,
        own_attention=np.where(own >= 0, 0.01, 0),
        own_phi=np.where(own >= 0, rng.normal(0, 0.5, (len(variants), *cells, n_own)), 0),
        phi_total=phi.sum(-1),
        promoted=words[0],
        promoted_logits=logits[0],
        suppressed=words[1],
        suppressed_logits=-logits[1],
        vocabulary={i: f" {word}-{i}" for i in range(50)},
        about={"question": "Which character has spent time in Amsterdam?", "answer": "Mara"},
    )
