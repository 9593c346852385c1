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
# # 3. How heads are spread over layers, and how sure that is
#
# Open and run: `pip install -c constraints.txt -e '.[notebooks]'`, then open this file as a notebook (JupyterLab
# with jupytext), or `jupytext --to ipynb notebooks/03_layer_distributions.py`.
#
# Are retrieval heads late? Few or many? Would other trials give the same list? Three questions about a map of scores,
# and each has a trap: noise spreads evenly over layers, intervals hide how few trials there are, and heads that share
# a key-value head are not independent.

# %%
import numpy as np
import pandas as pd

import locos_tl as lt
from locos_tl.results import statistics

model = lt.load_model("smollm2-135m")

# %%
trials = lt.load_trials("nonliteral", n=12, lengths=64, depths=(0.5, 0.75, 1.0), seed=1, tokenizer=model)
scores = lt.score_heads(model, trials, ("locos", "attention_spatial"), max_new_tokens=14)
locos = scores["locos"]
print(f"{scores.passed} of {scores.total} trials passed")
assert scores.passed >= 4

# %% [markdown]
# ## Layer profiles
#
# The profile is the share of the *positive* score that each layer holds. The band is a bootstrap over trials, the
# diamond the centre of mass, the shaded part the last third of the layers. Below it, where the heads look.

# %%
lt.figures.layer_profile(scores)

# %% [markdown]
# Three numbers sum a map up. `last_third`: share of the positive mass in the last third of the layers. By chance it
# would be a third. `centre_of_mass`: mean depth, 0 for the first layer and 1 for the last. `gini`: how unevenly the
# mass is spread over heads; 0 for all the same, near 1 when one head has it all.


# %%
def summary(held: lt.HeadScores) -> dict[str, float]:
    """The three numbers of one map."""
    return {name: compute(held.mean) for name, compute in statistics.CONCENTRATION.items()}


pd.DataFrame({name: summary(held) for name, held in scores.items()}).T.round(3)

# %% [markdown]
# How many heads does one need to have half of the positive mass? A Gini coefficient says little until one has
# counted.

# %%
positive = np.sort(locos.mean.clip(min=0).ravel())[::-1]
half = int(np.searchsorted(positive.cumsum(), positive.sum() / 2)) + 1
print(f"{half} of {positive.size} heads hold half of the positive LOCOS mass")
assert half < positive.size / 4

# %% [markdown]
# ## The trap: noise counts as evenly spread
#
# Make up a model in which four heads do something, all in the last third, and measure it on twelve noisy trials. What
# does the profile say of the share in the last third? Repeat it with new noise, ten times.

# %%
plain, fitted = [], []
for seed in range(10):
    made_up = np.random.default_rng(seed).normal(0.0, 1.0, (12, 30, 9))  # trial, layer, head: noise around zero
    made_up[:, 22:26, 4] += 8.0  # the only heads with an effect: layers 22 to 25
    plain.append(statistics.last_third(made_up.mean(0)))
    mass = statistics.cross_fitted_mass(made_up, n_splits=200).mean(0)
    fitted.append(mass[20:].sum() / mass.sum())
print("truth          100 %")
print(f"plain         {np.mean(plain):4.0%}, give or take {np.std(plain):.0%}")
print(f"cross-fitted  {np.mean(fitted):4.0%}, give or take {np.std(fitted):.0%}")
assert np.mean(plain) < 0.8
assert abs(np.mean(fitted) - 1) < 0.1

# %% [markdown]
# Heads without any effect have a mean a little above zero in half of the cases. Each adds little, but there are
# hundreds of them in all layers. The plain profile of a noisy map is pulled towards "evenly spread", so of two maps
# that are equally late, the noisier looks less late.
#
# *Cross-fitting* undoes that. One random half of the trials says which heads are positive, the other half says how
# much they score, and the other way round. A head that is positive by luck in one half is as often negative in the
# other, so it adds nothing on average. (The price: a layer's share may come out slightly below zero.)
#
# Now the same for our scores.

# %%
n_late = model.n_layers // 3
rows = {}
for name, held in scores.items():
    mass = statistics.cross_fitted_mass(held.counted).mean(0)
    rows[name] = {"plain": statistics.last_third(held.mean), "cross-fitted": mass[-n_late:].sum() / mass.sum()}
late = pd.DataFrame(rows).T
late.round(3)

# %%
moved = (late["cross-fitted"] - late["plain"]).abs()
name = str(moved.idxmax())
print(f"cross-fitting moves {name} most, by {moved[name] * 100:.0f} points; locos by {moved['locos'] * 100:.0f}")

# %% [markdown]
# If a number hardly moves, noise had little part in it. If it moves much, the plain one was measuring trials too few.
# Whether *late* here means *late because of how LOCOS counts* is another question: it scores the direct path to the
# logits, and late heads have no other. Notebook 4 asks it by patching.

# %% [markdown]
# ## How sure is a head's score?
#
# Each head has an interval, from resampling the trials: 1,000 times, draw as many trials as there are, with
# replacement, and take the mean.

# %%
locos.top(8)[["layer", "head", "score", "ci_low", "ci_high", "n_trials"]].round(2)

# %%
low, high = locos.ci()
apart = int((low > 0).sum())
against = int((high < 0).sum())
print(
    f"{apart} of {low.size} heads have an interval above zero, {against} below, {low.size - apart - against} hold zero"
)
expected = 0.025 * low.size
print(f"if no head did anything, about {expected:.0f} would still lie above and as many below")

# %% [markdown]
# That last line is why a list of "significant heads" is not a result by itself: with hundreds of heads, some are
# far from zero by luck. (With few trials even more than that: a percentile bootstrap is then too narrow.) A large
# score that comes back in other trials is worth more.
#
# ## Would other trials give the same list?
#
# *Split half*: rank the heads on one random half of the trials and on the other, and compare.

# %%
halves = [locos.split_half(seed) for seed in range(50)]
print(f"Spearman between halves, over all heads: {np.mean(halves):.2f} (from {min(halves):.2f} to {max(halves):.2f})")

# %% [markdown]
# Over all heads, most of which do nothing, this is mostly the correlation of noise with noise. The first ten are
# what one would ablate or publish. How many trials until those stop moving? Draw n trials at random, and compare
# their first ten with those of n *other* trials, so that the two share nothing.


# %%
def top_overlap(n: int, k: int = 10, draws: int = 100) -> float:
    """Mean overlap of the first k heads of two disjoint samples of n trials."""
    found = []
    for seed in range(draws):
        order = np.random.default_rng(seed).permutation(locos.n_trials)[: 2 * n]
        one, other = (statistics.rank_heads(locos.counted[part].mean(0)) for part in (order[:n], order[n:]))
        found.append(statistics.overlap_at_k(one, other, k))
    return float(np.mean(found))


sizes = list(range(1, locos.n_trials // 2 + 1))
overlap = pd.DataFrame({f"first {k}": [top_overlap(n, k) for n in sizes] for k in (5, 10, 20)}, index=sizes)
overlap.index.name = "trials in each sample"
overlap.round(2)

# %%
chance = pd.Series({f"first {k}": k / low.size for k in (5, 10, 20)})
gained = overlap.iloc[-1] - overlap.iloc[0]
print("by chance:        ", chance.round(2).to_dict())
print("gained from 1 to", sizes[-1], "trials:", gained.round(2).to_dict())
assert (overlap.iloc[-1] > chance).all()

# %% [markdown]
# As long as a column still rises at its end, the list still moves, and more trials are needed before anything is said
# about the *order* of heads. For a paper, plan for a hundred passing trials or more, over many needles: a few needles
# asked many times are fewer trials than they seem.

# %% [markdown]
# ## Heads that share keys and values
#
# Under grouped-query attention, three query heads of this model read the same keys and values. They differ in where
# they look, and in their slice of W_O. If you cut a key-value cache or patch values, the *group* is the unit, so
# add up.

# %%
groups = statistics.by_kv_group(locos.mean, model.n_key_value_heads)
order = np.argsort(-groups.ravel())[:5]
size = model.n_heads // model.n_key_value_heads
rows = []
for layer, kv in (divmod(int(i), model.n_key_value_heads) for i in order):
    members = range(kv * size, (kv + 1) * size)
    rows.append(
        {"layer": layer, "KV head": kv, "sum": groups[layer, kv]}
        | {f"member {i + 1}": f"H{head}: {locos.mean[layer, head]:.2f}" for i, head in enumerate(members)}
    )
assert np.isclose(groups.sum(), locos.mean.sum(), rtol=1e-3)
pd.DataFrame(rows).round(2)

# %% [markdown]
# Do the good heads keep together? Among the twenty best heads, count the pairs that share a group, and count again
# after shuffling the heads within each layer (which keeps the layers as late as they are).


# %%
def pairs_in_groups(mean: np.ndarray, k: int = 20) -> int:
    """Pairs among the k best heads that read the same key-value head."""
    keys = [(layer, head // size) for layer, head in statistics.rank_heads(mean)[:k]]
    return sum(a == b for i, a in enumerate(keys) for b in keys[:i])


found = pairs_in_groups(locos.mean)
shuffled = [pairs_in_groups(np.random.default_rng(seed).permuted(locos.mean, axis=1)) for seed in range(200)]
p = (1 + sum(s >= found for s in shuffled)) / (1 + len(shuffled))
print(f"{found} pairs share a group; after shuffling {np.mean(shuffled):.1f} on average (p = {p:.2g})")

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Pure noise: no head does anything. What do the plain and the cross-fitted profile say? Why must the
# cross-fitted mass not be turned into shares here?
#
# <details><summary>Solution</summary>
#
# ```python
# noise = np.random.default_rng(1).normal(0.0, 1.0, (12, 30, 9))
# plain = statistics.layer_mass(noise.mean(0))
# mass = statistics.cross_fitted_mass(noise).mean(0)
# assert abs(plain[20:].sum() - 1 / 3) < 0.1  # looks like an even spread of something
# assert abs(mass.sum()) < 0.3 * noise.mean(0).clip(min=0).sum()  # there is next to nothing to share out
# ```
#
# </details>

# %% [markdown]
# **Exercise 2.** Is the profile of LOCOS later than that of attention? Take the same bootstrap resamples of trials
# for both, and give an interval for the difference of their centres of mass.
#
# <details><summary>Solution</summary>
#
# ```python
# resampled = {name: statistics.resampled_means(held.counted, 500, seed=0) for name, held in scores.items()}
# centres = {name: np.array([statistics.centre_of_mass(mean) for mean in means]) for name, means in resampled.items()}
# difference = centres["locos"] - centres["attention_spatial"]  # paired: resample i has the same trials in both
# low_end, high_end = np.quantile(difference, [0.025, 0.975])
# assert low_end < np.median(difference) < high_end
# print(f"LOCOS minus attention: {np.median(difference):+.2f} of the depth ({low_end:+.2f} to {high_end:+.2f})")
# ```
#
# </details>

# %% [markdown]
# **Exercise 3.** Does the KV group explain the scores? Compare the variance of scores within groups with that among
# all heads of a layer.
#
# <details><summary>Solution</summary>
#
# ```python
# by_group = locos.mean.reshape(model.n_layers, model.n_key_value_heads, size)
# within = by_group.var(-1).mean(-1)  # [layer]
# overall = locos.mean.var(-1)
# assert (within <= overall + 1e-6).all()
# last = slice(-n_late, None)
# share = float(within[last].sum() / overall[last].sum())
# print(f"in the last third, {share:.0%} of the variance lies within groups (by chance {6 / 8:.0%})")
# ```
#
# </details>
