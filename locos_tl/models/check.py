"""Is this model read correctly? Parity with plain transformers, and the identities scores rest on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import __version__
from ..progress import progress_bar
from .backends import shared_copy

if TYPE_CHECKING:
    from .hooked import HookedModel, LayerRead


CACHED_STEP = "a cached step against the uncached one"
PROBE_LIMIT = 2048
"""Longest probe prompt: a check keeps every pattern, which is quadratic in length."""


@dataclass(frozen=True)
class CheckRow:
    """One comparison: the largest error found against the largest allowed."""

    name: str
    passed: bool | None
    error: float | None
    tolerance: float | None
    note: str = ""


@dataclass(frozen=True)
class CheckReport:
    """The table that `HookedModel.check` returns; true when nothing failed."""

    model: str
    rows: tuple[CheckRow, ...]

    @property
    def passed(self) -> bool:
        return all(row.passed is not False for row in self.rows)

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        failed = [row.name for row in self.rows if row.passed is False]
        told = f"FAILED: {'; '.join(failed)}" if failed else f"{len(self.rows)} checks, none failed"
        return f"CheckReport({self.model!r}, {told})"

    def _repr_html_(self) -> str:
        from .. import html

        return html.card(f"Check of {self.model}: {'all checks pass' if self else 'FAILED'}", html.table(self.table()))

    def table(self) -> list[dict[str, str]]:
        """The rows as a reader wants them: pass, FAIL or n/a, the error, what was allowed, and why where it matters."""
        words = {True: "pass", False: "FAIL", None: "n/a"}
        return [
            {
                "check": row.name,
                "result": words[row.passed],
                "error": "" if row.error is None else f"{row.error:.1e}",
                "allowed": "" if row.tolerance is None else f"{row.tolerance:.0e}",
                "note": row.note if row.passed is not True else "",
            }
            for row in self.rows
        ]

    def to_dicts(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self.rows]


def versions() -> dict[str, str]:
    """Versions of the libraries that a score depends on."""
    found = {"locos_tl": __version__}
    for package in ("torch", "transformers", "transformer-lens", "tokenizers", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def refuse_broken(model: HookedModel) -> None:
    """The cheap part, run at every load.

    Raises:
        RuntimeError: when a cached step gives other logits than the uncached one (names the version pair
            and the fix), `hook_v` is not what the attention weights, or phi does not sum to the head's output.
    """
    report = check_model(model, quick=True)
    broken = [row for row in report.rows if row.passed is False]
    if not broken:
        return
    installed = versions()
    pair = ", ".join(f"{p} {installed.get(p, '?')}" for p in ("transformers", "transformer-lens"))
    worst = broken[0]
    cure = (
        "Install a pair known to work: pip install 'transformers>=5.9,<5.24' 'transformer-lens>=4.3,<5'."
        if worst.name == CACHED_STEP
        else "This architecture is not supported."
    )
    raise RuntimeError(
        f"{model.info.name}: {worst.name} is wrong by {worst.error:.3g} (allowed {worst.tolerance:.3g}) with {pair}. "
        f"{worst.note} Scores would be wrong, so this model is not used. {cure}"
    )


def check_model(
    model: HookedModel, *, quick: bool = False, length: int | None = None, progress: bool | None = None
) -> CheckReport:
    """Run the checks and collect a table.

    Args:
        model: the model to check.
        quick: only what every load runs: a cached step, `hook_v` against the cache, phi against z W_O.
        length: tokens of the probe prompt; default: a little over the smallest sliding window when
            that is at most 1,024, else 24.
        progress: show a bar; default: when stderr is a terminal, and never for the quick part.

    Raises:
        ValueError: for a length below 8 or above what a check can hold.
    """
    ids = _probe_ids(model, length, quick)
    checks: list[Callable[[_Probe], CheckRow]] = [_cached_step, _values_read, _phi_sums_to_z]
    if not quick:
        checks += [_plain_logits, _fused_logits, _patterns, _windows, _exact_sums_to_logit]
    rows = []
    with progress_bar(f"checking {model.info.name}", len(checks) + 1, show=False if quick else progress) as advance:
        probe = _Probe(model, ids)
        advance("probed")
        for check in checks:
            try:
                rows.append(check(probe))
            except (RuntimeError, ValueError, AttributeError, KeyError) as error:
                message = f"{type(error).__name__}: {error}".splitlines()[0]
                rows.append(CheckRow(check.__doc__ or check.__name__, False, float("inf"), 0.0, message))
            advance(rows[-1].name)
    return CheckReport(model.info.name, tuple(rows))


class _Probe:
    """One prompt, run once without and once with a cache; every check reads from these two runs."""

    def __init__(self, model: HookedModel, ids: list[int]) -> None:
        self.model = model
        self.ids = ids
        self.split = len(ids) - 4
        self.half = model.info.dtype not in ("float32", "float64")
        self.reads: dict[int, LayerRead] = {}
        self.cached_reads: dict[int, LayerRead] = {}
        self.seen: dict[str, Tensor] = {}
        with torch.inference_mode():
            self.full = model.segment(ids, None, self._keep(self.reads), self._residual_hooks()).float()
            self.cache = model.fill(ids[: self.split])
            self.cached = model.segment(ids[self.split :], self.cache, self._keep(self.cached_reads)).float()

    @staticmethod
    def _keep(into: dict[int, LayerRead]) -> Callable[[LayerRead], None]:
        return lambda read: into.__setitem__(read.layer, read)

    def _residual_hooks(self) -> list[tuple[str, Callable[..., None]]]:
        def keep(name: str) -> Callable[..., None]:
            def hook_fn(value: Tensor, hook: Any) -> None:
                self.seen[name] = value[0].float()

            return hook_fn

        last = self.model.n_layers - 1
        names = ["blocks.0.hook_resid_pre", f"blocks.{last}.hook_resid_post"]
        for layer in range(self.model.n_layers):
            names += [f"blocks.{layer}.{part}" for part in ("attn.hook_z", "hook_attn_out", "hook_mlp_out")]
        return [(name, keep(name)) for name in names if name in self.model.hooked.hook_dict]

    def allowed(self, full: float, half: float) -> float:
        """Tolerance in full precision, or in bf16 and fp16, where two right runs differ by rounding."""
        return half if self.half else full

    def z(self, layer: int) -> Tensor:
        """The head outputs, [pos head d_head]."""
        z = self.seen[f"blocks.{layer}.attn.hook_z"]
        g = self.model.geometry
        return z.reshape(z.shape[0], g.n_heads, g.d_head)


def _row(name: str, error: Tensor | float, tolerance: float, note: str = "") -> CheckRow:
    value = float(error)
    return CheckRow(name, value <= tolerance, value, tolerance, note)


def _scaled_gap(a: Tensor, b: Tensor) -> Tensor:
    """Largest difference in units of the reference's largest entry."""
    return (a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-6)


def _cached_step(p: _Probe) -> CheckRow:
    """a cached step"""
    gap = _scaled_gap(p.cached, p.full[p.split :])
    return _row(CACHED_STEP, gap, p.allowed(2e-4, 0.15), "The KV cache is ignored or misread.")


def _values_read(p: _Probe) -> CheckRow:
    """values read"""
    worst = torch.tensor(0.0)
    for layer, read in p.cached_reads.items():
        held = p.cache.values_before(layer, p.cache.length)[-4:]
        worst = torch.maximum(worst, _scaled_gap(read.values[-held.shape[0] :], held).cpu())
    note = "The value that is cached and attended to is not the one that hook_v shows."
    return _row("hook_v against the cached values", worst, 1e-6, note)


def _plain_logits(p: _Probe) -> CheckRow:
    """plain transformers"""
    name = "logits against plain transformers (eager)"
    if p.model.fused is None:
        return CheckRow(name, None, None, None, "no plain view of these weights: not compared")
    plain: Any = shared_copy(p.model.fused.model, "eager")
    with torch.inference_mode():
        logits = plain(input_ids=p.model.tokens(p.ids)).logits[0]
    return _row(name, _scaled_gap(p.full, logits), p.allowed(1e-5, 2e-2))


def _fused_logits(p: _Probe) -> CheckRow:
    """fused view"""
    name = "logits against the fused-attention view"
    if p.model.fused is None:
        return CheckRow(name, None, None, None, f"no fused view; prefill: {p.model.info.prefill}")
    with torch.inference_mode():
        logits = p.model.fused.run(p.model.tokens(p.ids), None)
    return _row(name, _scaled_gap(p.full, logits), p.allowed(2e-4, 0.15))


def _patterns(p: _Probe) -> CheckRow:
    """patterns"""
    worst = 0.0
    for read in p.reads.values():
        pattern = read.pattern.float()
        worst = max(worst, float((pattern.sum(-1) - 1).abs().max()), float(pattern.triu(1).abs().max()))
    note = "" if worst < 1e-2 else "attention sinks or gates outside the softmax?"
    return _row("patterns sum to one and are causal", worst, p.allowed(1e-5, 1e-2), note)


def _windows(p: _Probe) -> CheckRow:
    """sliding windows"""
    name = "sliding windows align with absolute positions"
    windows = p.model.windows
    if all(window is None for window in windows):
        return CheckRow(name, None, None, None, "no sliding-window layers")
    if min(window for window in windows if window is not None) >= len(p.ids):
        return CheckRow(name, None, None, None, f"window above the probe's {len(p.ids)} tokens; give --length")
    worst = 0.0
    for layer, read in p.cached_reads.items():
        full = p.reads[layer].pattern[:, p.split :, read.first_key :]
        worst = max(worst, float((read.pattern.float() - full.float()).abs().max()))
        lost = p.reads[layer].pattern[:, p.split :, : read.first_key]
        worst = max(worst, float(lost.abs().max()) if lost.numel() else 0.0)
        window = windows[layer]
        if window is not None:
            nonzero = (p.reads[layer].pattern > 0).sum(-1).max()
            worst = max(worst, float(nonzero - window))
    return _row(name, worst, p.allowed(1e-4, 0.3))


def _phi_sums_to_z(p: _Probe) -> CheckRow:
    """phi over all positions against u.(z W_O)"""
    from ..scoring.contribution import contributions, ov_directions

    query = len(p.ids) - 1
    u = p.model.unembed([int(p.full[query].argmax())])
    worst = torch.tensor(0.0)
    for layer, read in p.reads.items():
        W_O = p.model.W_O(layer).float()
        phi = contributions(read.pattern[:, [query]], read.values, ov_directions(W_O, u.to(W_O.device)))
        z = torch.einsum("hd,hdm,m->h", p.z(layer)[query], W_O, u[0].to(W_O.device))
        worst = torch.maximum(worst, _scaled_gap(phi.sum(-1)[:, 0], z).cpu())
    note = "Something between the values and the output projection, such as a gate, is not part of phi."
    return _row("sum of phi over all positions against u.(z W_O)", worst, p.allowed(1e-4, 5e-2), note)


def _exact_sums_to_logit(p: _Probe) -> CheckRow:
    """exact decomposition"""
    name = "exact decomposition sums to the logit"
    model, query = p.model, len(p.ids) - 1
    # Under a soft cap a token far from the cap: at the cap itself rounding leaves nothing to undo.
    token = int(p.full[query].abs().argmin() if soft_cap(model) else p.full[query].argmax())
    last = f"blocks.{model.n_layers - 1}.hook_resid_post"
    missing = [n for n in ("blocks.0.hook_resid_pre", last) if n not in p.seen]
    if missing:
        return CheckRow(name, None, None, None, f"no hook {missing[0]}")
    from ..scoring.contribution import contributions, ov_directions

    norm = model.final_norm()
    scale = norm.scale(p.seen[last][query])
    direction = norm.pull_back(model.unembed([token]))[0]
    total = direction @ p.seen["blocks.0.hook_resid_pre"][query] / scale
    total = total + model.unembed([token])[0] @ norm.bias + model.unembed_bias([token])[0]
    for layer, read in p.reads.items():
        post = model.post_attention_norm(layer)
        written, post_bias, post_scale = direction, 0.0, torch.tensor(1.0)
        W_O = model.W_O(layer).float()
        attn_out = torch.einsum("hd,hdm->m", p.z(layer)[query], W_O)
        b_O = model.b_O(layer)
        if b_O is not None:
            attn_out = attn_out + b_O.float()
        if post is not None:
            written, post_scale = post.pull_back(direction[None])[0], post.scale(attn_out)
            post_bias = float(direction @ post.bias)
        phi = contributions(read.pattern[:, [query]], read.values, ov_directions(W_O, written[None]))
        heads = phi.sum() / post_scale
        bias = 0.0 if b_O is None else written @ b_O.float() / post_scale
        mlp = direction @ p.seen[f"blocks.{layer}.hook_mlp_out"][query]
        total = total + (heads + bias + post_bias + mlp) / scale
    logit = _uncap(model, float(p.full[query, token]))
    gap = abs(float(total) - logit) / max(1.0, abs(logit))
    return _row(name, gap, p.allowed(1e-4, 5e-2), "before the final soft cap" if soft_cap(model) else "")


def soft_cap(model: HookedModel) -> float:
    """The cap on the final logits (Gemma-2), or 0."""
    cap = getattr(model.hooked.cfg, "output_logits_soft_cap", -1.0)
    return float(cap) if cap and cap > 0 else 0.0


def _uncap(model: HookedModel, logit: float) -> float:
    cap = soft_cap(model)
    return cap * float(torch.atanh(torch.tensor(logit / cap, dtype=torch.float64))) if cap else logit


def _probe_ids(model: HookedModel, length: int | None, quick: bool) -> list[int]:
    """Varied ordinary tokens, the same every time."""
    if length is None:
        windows = [w for w in model.windows if w is not None and w <= 1024]
        length = min(windows) + 16 if windows and not quick else 24
    else:
        longest = min(model.geometry.n_ctx or PROBE_LIMIT, PROBE_LIMIT)
        if not 8 <= length <= longest:
            raise ValueError(f"the probe prompt must have 8 to {longest} tokens, got {length}")
    length = min(length, model.geometry.n_ctx or length)
    d_vocab = model.geometry.d_vocab
    return [(7919 * (i + 1) + 31 * i * i) % (d_vocab - 1) for i in range(length)]
