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
# # 6. Your model, your needles
#
# Open and run: `pip install -c constraints.txt -e '.[notebooks]'`, then open this file as a notebook (JupyterLab
# with jupytext), or `jupytext --to ipynb notebooks/06_your_model_your_needles.py`.
#
# A template to copy: another model, other needles, results on disk that resume, head lists of other projects, and a
# detector of your own.

# %%
import json
import tempfile
from pathlib import Path

import pandas as pd
import torch

import locos_tl as lt

pd.set_option("display.max_colwidth", 100)  # answers in full

# %% [markdown]
# ## The model
#
# Set `MY_MODEL` to a Hub id, a local folder, or any transformers model that you hold in a variable (then as a pair
# `(model, tokenizer)`). Left at `None`, the bundled model stands in.

# %%
MY_MODEL = None  # for instance "Qwen/Qwen3-1.7B"

# %% [markdown]
# On a GPU nothing else changes: scores are summed in float32 whatever the dtype of the weights. Two remarks.
#
# - `dtype="bfloat16"` halves the memory, and rounds: two tokens that are nearly tied may swap, and then another text is
#   generated. Look at `min_margin` of the outcomes before you compare runs.
# - Memory beyond the weights grows linearly with the prompt: no pattern of the size n x n is ever kept. A model that
#   does not fit one GPU can be spread with `device_map="auto"`.

# %%
options = {}
if MY_MODEL and torch.cuda.is_available():
    options = {"device": "cuda", "dtype": "bfloat16"}
model = lt.load_model(MY_MODEL or "smollm2-135m", **options)
model

# %% [markdown]
# ### Is it read correctly?
#
# Every architecture hides surprises: norms behind the attention, sliding windows, gates between values and output.
# A cheap check runs at every load. Before you trust a number of a new model, run all of it: the hooked model
# against plain transformers, and the identities of notebook 1 (`phi` sums to the head's output, the parts sum to
# the logit).

# %%
report = model.check()
assert report
pd.DataFrame(report.to_dicts())[["name", "passed", "error", "tolerance"]]

# %% [markdown]
# A row that is neither passed nor failed does not apply to this model. If one fails, `check` says what is wrong;
# please do not score that model.

# %% [markdown]
# ## Your needles
#
# One JSON object a line, with five fields. `{CHAR}` becomes the answer, in needle and question.

# %%
scratch = tempfile.TemporaryDirectory()  # gone when the notebook is closed; take a folder of yours
folder = Path(scratch.name)
needles = [
    ("dish", "{CHAR} rolls sushi and grates fresh wasabi.", "Which character likes Japanese food?", "Laura"),
    ("animal", "In the paddock {CHAR} fills the hay rack.", "Which character takes care of horses?", "Omar"),
    ("trade", "Long before dawn {CHAR} kneads dough and heats the oven.", "Which character is a baker?", "Daniel"),
    ("language", "{CHAR} says danke and auf Wiedersehen.", "Which character speaks German?", "Anna"),
    ("weather", "Before leaving {CHAR} takes the umbrella.", "Which character expects rain?", "Felix"),
    ("landmark", "{CHAR} sweeps the steps of the Colosseum.", "Which character works in Rome?", "Clara"),
]
rows = [
    {"id": str(i), "relation": relation, "needle": needle, "question": question, "answer": answer}
    for i, (relation, needle, question, answer) in enumerate(needles)
]
path = folder / "needles.jsonl"
path.write_text("\n".join(map(json.dumps, rows)))

trials = lt.load_trials(path, lengths=64, depths=1.0, seed=3, tokenizer=model)
pd.DataFrame([{"needle": t.needle, "question": t.question, "tokens": t.n_tokens, "at": t.needle_span} for t in trials])

# %% [markdown]
# What makes a good needle: the question shares no word with it, one thing one knows about the world joins the two,
# and nothing else in the text fits. `haystack="my_text.txt"` takes prose of yours, which must not name any answer.
# The span of the needle is *tracked* while the prompt is put together, never searched for:

# %%
start, end = trials[0].needle_span
print(repr(model.tokenizer.decode(trials[0].prompt_ids[start:end])))
assert model.tokenizer.decode(trials[0].prompt_ids[start:end]).strip() == trials[0].needle

# %% [markdown]
# Prompts that you have already go in as pieces of text (`lt.Trial.from_text`) or as token ids (`lt.Trial.from_ids`):

# %%
own = lt.Trial.from_text(
    model,
    before="The shop opens at nine. ",
    needle="Boris mends the clock on the wall.",
    after=" It rains.",
    question="Who repairs clocks?",
    answer="Boris",
)
own.needle_span, own.n_tokens

# %% [markdown]
# ## A run that survives a crash
#
# With `out=` every trial is on disk as soon as it is finished. The same call goes on where it stopped. Here it
# "stops" after three trials, and is called again with all of them: only the new ones are run.

# %%
run = folder / "run"
first = lt.score_heads(model, trials[:3], max_new_tokens=16, out=run)
scores = lt.score_heads(model, trials, max_new_tokens=16, out=run)
print(first, scores, sep="\n")
assert scores.outcomes[:3] == first.outcomes
sorted(p.name for p in run.iterdir() if not p.name.startswith("."))

# %%
scores.outcomes_frame()[["passed", "needle", "answer", "generated_text", "min_margin"]]

# %% [markdown]
# If some failed, read why before you blame the model: a question that calls for a famous answer ("who works in
# Rome?") may be answered from memory and not from your text.
#
# What does not belong together is refused: another model, other settings, other trials. The message names the first
# thing that differs.

# %%
try:
    lt.score_heads(model, trials, max_new_tokens=16, variant="exact", out=run)
except lt.ResultFileError as refusal:
    print(str(refusal).replace(str(folder), "..."))

# %% [markdown]
# Results are plain safetensors and JSON, with all that made them: versions, weights, settings, prompts.

# %%
loaded = lt.Scores.load(run)
assert (loaded["locos"].mean == scores["locos"].mean).all()
{name: loaded.provenance["model"][name] for name in ("name", "dtype", "n_layers", "n_heads", "n_key_value_heads")}

# %%
lt.figures.heatmap(loaded["locos"])

# %% [markdown]
# ## Head lists of other projects
#
# The field passes heads on as JSON: `{"layer-head": [score of each trial]}`. Yours can be written so, theirs can be
# read, and then every table, figure and ablation of this library takes them.

# %%
scores["locos"].to_head_list(folder / "mine.json", envelope=True)  # with passed/total, KV heads and provenance
theirs = lt.HeadScores.from_head_list(folder / "mine.json")
assert theirs.ranking() == scores["locos"].ranking()
print((folder / "mine.json").read_text()[:160], "...")

# %% [markdown]
# A bare list does not know how many heads the model has, nor which share keys. Say it, and a list of another model is
# refused:

# %%
published = {f"{layer}-{head}": [0.0] for layer in range(12) for head in range(12)}
try:
    lt.HeadScores.from_head_list(published, n_layers=model.n_layers, n_heads=model.n_heads)
except lt.ResultFileError as refusal:
    print(refusal)

# %% [markdown]
# ## A detector of your own
#
# A detector is a function from what was measured in one trial to a score for each head. This one asks what *share* of
# all a head writes, for or against the answer, comes from the needle: a head that writes little, but only from there,
# scores high. (To give it to everybody, see `CONTRIBUTING.md`.)

# %%
from locos_tl.scoring.detectors import DETECTORS, detector

if "needle_share" not in DETECTORS:  # so that this cell can be run twice

    @detector("needle_share", reads=["phi"])
    def needle_share(m):
        """Needle part of the head's write, as a share of the sizes of both parts."""
        return (m.phi_needle / (m.phi_needle.abs() + m.phi_off.abs())).mean(-1)


# %%
answered = [
    trial.with_generation(outcome.generated_ids)
    for trial, outcome in zip(trials, scores.outcomes, strict=True)
    if outcome.passed
]  # the answers are known: nothing is decoded again
mine = lt.score_heads(model, answered, ("locos", "needle_share", "random"))
assert abs(mine["needle_share"].mean).max() <= 1
lt.figures.agreement(mine, k=10)

# %% [markdown]
# ## One page to pass on
#
# `write_report` puts a run into one HTML file that opens without a network. On the command line, all of the above is
# `locos-tl check`, `locos-tl score` and `locos-tl report`.

# %%
page = lt.figures.write_report(scores, folder / "report.html")
print(f"{page.name}: {page.stat().st_size / 1e6:.1f} MB")

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Write a detector that favours heads which read the needle *and* write from it: attention mass on the
# needle times the LOCOS contrast.
#
# <details><summary>Solution</summary>
#
# ```python
# from locos_tl.scoring.contrast import contrast
#
# if "read_write" not in DETECTORS:
#
#     @detector("read_write", reads=["phi", "attention"])
#     def read_write(m):
#         """LOCOS, weighted by the attention mass on the needle."""
#         return (m.alpha_needle * contrast(m.phi_needle, m.phi_off, m.n_needle, m.n_keys)).mean(-1)
#
#
# both = lt.score_heads(model, answered, ("locos", "read_write"))
# print(lt.results.statistics.rank_agreement(both["locos"].mean, both["read_write"].mean, ks=(10,)))
# assert both["read_write"].mean.shape == (model.n_layers, model.n_heads)
# ```
#
# </details>

# %% [markdown]
# **Exercise 2.** Two measurements of the same trials agree exactly when nothing was decoded anew. Check that teacher
# forcing (`answered`) and the run on disk give the same LOCOS scores.
#
# <details><summary>Solution</summary>
#
# ```python
# import numpy as np
#
# assert mine["locos"].trial_ids == loaded["locos"].trial_ids
# assert np.allclose(mine["locos"].per_trial, loaded["locos"].per_trial, rtol=1e-3, atol=1e-3)
# ```
#
# </details>

# %% [markdown]
# **Exercise 3.** Score the two halves of your needles apart, and decide whether you would publish the list.
#
# <details><summary>Solution</summary>
#
# ```python
# ids = scores["locos"].trial_ids
# one, other = scores["locos"].over(ids[::2]), scores["locos"].over(ids[1::2])
# shared = lt.results.statistics.overlap_at_k(one.ranking(), other.ranking(), 10)
# print(f"{len(ids)} passing trials; the halves share {shared:.0%} of their first ten heads: ask more needles first")
# assert 0 <= shared <= 1
# ```
#
# </details>
