# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Find retrieval heads in five cells
#
# Open and run: `pip install -e '.[notebooks]'`, then open this file as a notebook (JupyterLab with jupytext), or
# `jupytext --to ipynb notebooks/quickstart.py`.
#
# A *needle* such as "Yuki rents a small flat a few steps from the Eiffel Tower." hides in a page of plain prose. The
# question "Which character lives in Paris?" shares no word with it. Which heads carry the answer?

# %%
import locos_tl as lt

model = lt.load_model("smollm2-135m")
model

# %%
trials = lt.load_trials("nonliteral", n=8, lengths=(64, 128), tokenizer=model)
print(model.tokenizer.decode(trials[0].prompt_ids))

# %% [markdown]
# One call decodes every answer, gates it, and scores every head with every detector. Only trials that the model answers
# count: a head cannot be shown to retrieve what was not retrieved.

# %%
scores = lt.score_heads(model, trials)
print(scores)
scores["locos"].top(5)

# %%
lt.figures.heatmap(scores["locos"])

# %% [markdown]
# `phi` is the full picture of one trial: how much each position, through each head, raises the answer's logit. Here are
# the five tokens from which the best head writes the answer.

# %%
best = scores["locos"].ranking()[0]
passed = next(i for i, outcome in enumerate(scores.outcomes) if outcome.passed)
trial = lt.generate(model, trials[passed])
phi = lt.phi(model, trial)[best[0], best[1], 0]
for position in phi.argsort(descending=True)[:5].tolist():
    inside = trial.needle_span[0] <= position < trial.needle_span[1]
    token = model.tokenizer.decode([(*trial.prompt_ids, *trial.generated_ids)[position]])
    print(f"{float(phi[position]):8.3f}  {token!r:15} {'needle' if inside else ''}")

# %% [markdown]
# **Exercise.** Score the literal twins of the same needles (`kinds="literal"`) and compare the two rankings with
# `lt.results.statistics.rank_agreement`. Which heads are shared?
