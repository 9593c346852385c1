# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 1. Reading and writing: one prompt, every head, by hand
#
# Open and run: `pip install -c constraints.txt -e '.[notebooks]'`, then open this file as a notebook (JupyterLab
# with jupytext), or `jupytext --to ipynb notebooks/01_reading_and_writing.py`.
#
# An attention head does two things. Its queries and keys decide **where it reads**: the attention pattern. Its values
# and its output matrix decide **what it writes** into the residual stream. A detector that looks at the pattern alone
# sees the first half. Here you compute both halves for every head of a small model, with nothing but `einsum`, and
# check the result against the library and against the logit itself.
#
# You should know what a transformer is. You need not have opened one before.

# %%
import pandas as pd
import torch
from einops import einsum

import locos_tl as lt

model = lt.load_model("smollm2-135m")
model

# %% [markdown]
# ## One question
#
# A *needle* is hidden in a page of prose. The question does not repeat its words: one has to know what the needle
# means.

# %%
trial = lt.load_trials("nonliteral", n=1, lengths=64, depths=0.5, seed=7, tokenizer=model)[0]
print("needle:  ", trial.needle)
print("question:", trial.question)
print("span of the needle in tokens:", trial.needle_span, "of", trial.n_tokens)

# %%
answered = lt.generate(model, trial, max_new_tokens=16)  # the same trial, with the model's greedy answer
print(model.tokenizer.decode(answered.generated_ids))

# %% [markdown]
# The name must come from the needle: it stands nowhere else. So look at the moment at which the model writes the
# name. The *query* of that moment is the last position before it.

# %%
(name,) = model.tokenizer(" " + trial.answer, add_special_tokens=False)["input_ids"]  # this name is one token
step = answered.generated_ids.index(name)
ids = (*trial.prompt_ids, *answered.generated_ids[:step])  # all that the model has read at this moment
words = [model.tokenizer.decode([i]) for i in ids]
print(f"step {step}: after {''.join(words[-6:])!r} comes {model.tokenizer.decode([name])!r}")

# %% [markdown]
# ## Look inside
#
# `model.hooked` is the TransformerLens model. `run_with_cache` runs it and keeps the activations that you name. Four
# per layer matter here; two more from the ends of the residual stream will be needed at the very end.

# %%
wanted = ("attn.hook_pattern", "attn.hook_v", "attn.hook_z", "hook_mlp_out")
ends = ("blocks.0.hook_resid_pre", f"blocks.{model.n_layers - 1}.hook_resid_post")
with torch.inference_mode():
    logits, cache = model.hooked.run_with_cache(
        model.tokens(ids), names_filter=lambda hook: hook.endswith(wanted) or hook in ends
    )
logit = logits[0, -1, name]
assert logits[0, -1].argmax() == name
{hook: tuple(cache[f"blocks.23.{hook}"].shape) for hook in wanted}

# %% [markdown]
# Axis 0 is the batch. The pattern is `[batch, head, query, key]`, the values are `[batch, key, kv_head, d_head]`, and
# `z`, what a head hands to its output matrix, is `[batch, query, head, d_head]`.
#
# Mind the numbers of heads. This model uses *grouped-query attention*: nine query heads share three key-value heads.
# Query head h reads key-value head h // group.

# %%
group = model.n_heads // model.n_key_value_heads
kv_of = torch.arange(model.n_heads) // group
print(f"{model.n_heads} query heads, {model.n_key_value_heads} key-value heads; head h reads", kv_of.tolist())

# %% [markdown]
# ## Where a head reads
#
# `alpha` is the pattern's row of our query: for each head, a probability over all positions so far.

# %%
alpha = torch.stack([cache[f"blocks.{layer}.attn.hook_pattern"][0, :, -1] for layer in range(model.n_layers)])
assert alpha.shape == (model.n_layers, model.n_heads, len(ids))
assert torch.allclose(alpha.sum(-1), torch.ones(model.n_layers, model.n_heads), atol=1e-4)

start, end = trial.needle_span
on_needle = alpha[..., start:end].sum(-1)  # attention mass on the needle, [layer, head]


def heads_by(score: torch.Tensor, k: int = 6) -> list[tuple[int, int]]:
    """The k heads with the highest score, as (layer, head)."""
    return [divmod(i, model.n_heads) for i in score.flatten().topk(k).indices.tolist()]


readers = heads_by(on_needle)
pd.DataFrame([{"head": f"L{layer}H{head}", "mass on needle": float(on_needle[layer, head])} for layer, head in readers])

# %% [markdown]
# ## What a head writes
#
# If a head looked at key j and nowhere else, it would add the vector `v[j] W_O` to the residual stream. Whether
# that helps the name depends on its direction: the *unembedding* row `u` of the name is the direction that the last
# layer reads as "say this name". So `u . (v[j] W_O)` is how much the write says the name, and times `alpha[j]` is
# how much of it this head does say. That product is the logit contribution
#
#     phi[l, h, j] = alpha[l, h, j] * u . (v[l, j] W_O[l, h])
#
# and it is all that Logit-Contribution Scoring (LOCOS) is made of.

# %%
u = model.unembed([name])[0]  # row of W_U, raw: no norm, no bias
assert torch.allclose(u, model.hooked.W_U[:, name].float())

v = torch.stack([cache[f"blocks.{layer}.attn.hook_v"][0] for layer in range(model.n_layers)])[:, :, kv_of]
W_O = torch.stack([model.W_O(layer) for layer in range(model.n_layers)])  # layer head d_head d_model
written = einsum(
    v, W_O, u, "layer key head d_head, layer head d_head d_model, d_model -> layer head key"
)  # u . (v[j] W_O)
phi = alpha * written
phi.shape

# %% [markdown]
# Three lines of algebra. The library computes the same without ever building a tensor of all layers; the two must
# agree.

# %%
theirs = lt.phi(model, answered, steps=step)[:, :, 0]
gap = float((phi - theirs).abs().max() / theirs.abs().max())
assert gap < 1e-4
print(f"largest difference from lt.phi, as a share of the largest entry: {gap:.1e}")

# %% [markdown]
# ## Reading is not writing
#
# Put both halves side by side: the heads that read the needle most, and the heads whose needle part of `phi` is
# largest.

# %%
from_needle = phi[..., start:end].sum(-1)
writers = heads_by(from_needle)
rows = [
    {
        "head": f"L{layer}H{head}",
        "reads (mass on needle)": float(on_needle[layer, head]),
        "writes (phi from needle)": float(from_needle[layer, head]),
        "chosen as": " and ".join(
            [role for role, chosen in (("reader", readers), ("writer", writers)) if (layer, head) in chosen]
        ),
    }
    for layer, head in dict.fromkeys([*readers, *writers])
]
pd.DataFrame(rows).round(3)

# %%
largest = float(from_needle.max())
towards = [head for head in readers if from_needle[head] > 0.05 * largest]
against = [head for head in readers if from_needle[head] < -0.05 * largest]
print(f"Of the {len(readers)} heads that read the needle most,")
print(f"  {len(towards)} write towards the name,")
print(f"  {len(against)} write against it ({', '.join(f'L{layer}H{head}' for layer, head in against) or 'none'}),")
print(f"  {len(readers) - len(towards) - len(against)} write next to nothing in its direction;")
print(f"  {len(set(readers) & set(writers))} are among the {len(writers)} that write it most.")

# %% [markdown]
# A head that reads the needle and does not write towards the name is not broken. It may move something else on (where
# the sentence ends, that a name occurs), which later heads use; one that writes against the name may keep the model
# from being too sure. But it is not the head that *says* the name, and attention alone cannot tell them apart.
#
# The whole map, summed over the needle's positions. `HeadScores` is what every detector of this library returns;
# made by hand, it is drawn by the same figure.

# %%
by_hand = lt.HeadScores("phi from the needle", from_needle[None].numpy(), (trial.trial_id,), 1, model.n_key_value_heads)
lt.figures.heatmap(by_hand, top_k=5)

# %% [markdown]
# ## From which token, and what else would it say?
#
# Take the head that writes the name most, and the position from which it does. The same write can be compared with
# *every* row of the unembedding: the tokens that it says loudest. (Raw unembedding rows differ in length, so take the
# list as a hint and not as a proof.)

# %%
layer, head = writers[0]
positions = phi[layer, head].topk(5).indices.tolist()
pd.DataFrame(
    {
        "token": [repr(words[j]) for j in positions],
        "in the needle": [start <= j < end for j in positions],
        "alpha": alpha[layer, head, positions].numpy(),
        "u.(v W_O)": written[layer, head, positions].numpy(),
        "phi": phi[layer, head, positions].numpy(),
    }
).round(3)

# %%
source = positions[0]
write = v[layer, source, head] @ W_O[layer, head]  # what L,H adds when it looks at this position only
loudest = (write @ model.hooked.W_U).topk(8).indices.tolist()
print(f"L{layer}H{head} looking at {words[source]!r} says: ", [model.tokenizer.decode([i]) for i in loudest])
print("the attended token is" + ("" if ids[source] == name else " not") + " the generated one")

# %% [markdown]
# If the attended token is the generated one, the head copies, and a copy detector has a chance to see it. If not,
# even if it is only a piece of the name or the name without its space, the detector sees nothing; the write still
# tells. Notebook 2 counts how often that is the case.
#
# ## All the way to the logit
#
# So far `u` was raw, as in the paper, and `phi` is not in units of logits: between the residual stream and the
# unembedding stands a norm. Freeze its scale at this position and it is a linear map. Then every part of the residual
# stream has a share of the logit, and the shares add up: heads, MLPs, and the embedding. (This model has no biases.)

# %%
norm = model.final_norm()
last = cache[ends[1]][0, -1]
scale = norm.scale(last)  # root mean square of the last residual stream
direction = norm.pull_back(u[None])[0] / scale  # u through the norm's gain and its frozen scale

exact = alpha * einsum(v, W_O, direction, "layer key head d_head, layer head d_head d_model, d_model -> layer head key")
mlp_out = torch.stack([cache[f"blocks.{layer}.hook_mlp_out"][0, -1] for layer in range(model.n_layers)])
parts = {
    "embedding": float(cache[ends[0]][0, -1] @ direction),
    "attention heads": float(exact.sum()),
    "MLPs": float((mlp_out @ direction).sum()),
}
print(f"sum of parts {sum(parts.values()):.4f}, logit of{model.tokenizer.decode([name])!r} {float(logit):.4f}")
assert abs(sum(parts.values()) - float(logit)) < 1e-3
pd.Series(parts, name="logit").to_frame().round(3)

# %% [markdown]
# The decomposition is complete: nothing is left over. `variant="exact"` of the library is this one, so its heads and
# positions must sum to the second line.

# %%
theirs = lt.phi(model, answered, steps=step, variant="exact")
assert abs(float(theirs.sum()) - parts["attention heads"]) < 1e-3
needle_share = float(exact[..., start:end].sum())
print(f"all heads together: {parts['attention heads']:.2f} logits, of which {needle_share:.2f} from the needle")

# %% [markdown]
# Two warnings. First, softmax sees only differences of logits, so a share that raises all tokens alike changes
# nothing: exercise 3 looks at a difference. Second, complete does not mean causal. A head's *direct* share of the
# logit says nothing about what it does by way of later layers; the MLPs' share may be large because of what the
# heads gave them. Notebooks 4 and 5 ask what changes when a head is taken away.

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** A head's `z` is the pattern-weighted mean of its values. Show that `phi` summed over all positions
# is `u . (z W_O)`, for every head at once.
#
# <details><summary>Solution</summary>
#
# ```python
# z = torch.stack([cache[f"blocks.{layer}.attn.hook_z"][0, -1] for layer in range(model.n_layers)])
# per_head = einsum(z, W_O, u, "layer head d_head, layer head d_head d_model, d_model -> layer head")
# assert torch.allclose(phi.sum(-1), per_head, atol=1e-3)
# ```
#
# </details>

# %% [markdown]
# **Exercise 2.** LOCOS contrasts the needle with the rest: sum `phi` over the needle, and subtract the sum over all
# other keys, scaled to as many keys as the needle has. Compute it for all heads, and compare it with
# `lt.score_heads`.
#
# <details><summary>Solution</summary>
#
# ```python
# n_needle, n_keys = end - start, len(ids)
# rest = phi.sum(-1) - from_needle
# locos = from_needle - n_needle / (n_keys - n_needle) * rest
# scores = lt.score_heads(model, answered, ["locos"])
# assert scores.passed == 1
# assert len(scores.outcomes[0].answer_steps) == 1  # a name of one token, so no mean over steps
# expected = torch.from_numpy(scores["locos"].per_trial[0])
# assert torch.allclose(locos, expected, atol=1e-4 * float(expected.abs().max()))
# ```
#
# </details>

# %% [markdown]
# **Exercise 3.** A wrong name could be raised as well. Compute `phi` for another name that is one token, and find the
# heads that tell the right name from the wrong one best: a difference of two logits.
#
# <details><summary>Solution</summary>
#
# ```python
# other = " Laura"
# wrong = lt.phi(model, answered, steps=step, target=other)[:, :, 0]
# difference = (phi - wrong).sum(-1)
# (u_other,) = model.unembed(model.tokenizer(other, add_special_tokens=False)["input_ids"])
# by_difference = alpha * einsum(
#     v, W_O, u - u_other, "layer key head d_head, layer head d_head d_model, d_model -> layer head key"
# )
# assert torch.allclose(by_difference.sum(-1), difference, atol=1e-3)  # phi is linear in u
# print("tell the names apart:", [f"L{layer}H{head}" for layer, head in heads_by(difference)])
# ```
#
# </details>

# %% [markdown]
# **Exercise 4.** Grouped-query attention is easy to get wrong. Use `h % n_key_value_heads` in place of `h // group`
# and find out which check notices.
#
# <details><summary>Solution</summary>
#
# ```python
# wrong_kv = torch.arange(model.n_heads) % model.n_key_value_heads
# raw = torch.stack([cache[f"blocks.{layer}.attn.hook_v"][0] for layer in range(model.n_layers)])
# mistaken = alpha * einsum(
#     raw[:, :, wrong_kv], W_O, u, "layer key head d_head, layer head d_head d_model, d_model -> layer head key"
# )
# assert mistaken.shape == phi.shape  # no error is raised ...
# z = torch.stack([cache[f"blocks.{layer}.attn.hook_z"][0, -1] for layer in range(model.n_layers)])
# per_head = einsum(z, W_O, u, "layer head d_head, layer head d_head d_model, d_model -> layer head")
# assert not torch.allclose(mistaken.sum(-1), per_head, atol=1e-3)  # ... but the sum over positions is wrong
# ```
#
# </details>
