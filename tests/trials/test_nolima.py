"""NoLiMa read from files in the published format (the texts here are our own), and what happens without them."""

import itertools
import json
import re
import shutil
import socket
import time
from collections import Counter

import pytest

from locos_tl.results.files import ResultFileError
from locos_tl.trials import public
from locos_tl.trials.needle import PromptTemplate
from locos_tl.trials.nolima import DEPTHS, LENGTHS, nolima

NAMES = ["Odile", "Bram", "Tariq", "Wenna", "Ilse", "Piotr"]
ENTRIES = [
    {
        "id": "0101",
        "reasoning_type": "world_knowledge",
        "system_prompt": "You answer questions about stories.",
        "task_template": "Here is a story:\n\n{haystack}\n\nQ: {question}\n\nReply with a name only.",
        "needle": "Last year {CHAR} moved to a loft above {1}.",
        "questions": {"onehop": "Which character lives in {2}?", "twohop": "Which character lives in {3}?"},
        "character_set": NAMES,
        "tests": {
            "T1": {"input_args": ["the Rialto Bridge", "Venice", "Italy"]},
            "T2": {"input_args": ["the Charles Bridge", "Prague", "Bohemia"]},
            "T3": {"input_args": ["Tower Bridge", "London", "England"]},
        },
    },
    {
        "id": "0102",
        "system_prompt": "",
        "task_template": "{haystack}\n{question}",
        "needle": "Next to {1}, {CHAR} eats {2} in silence.",
        "questions": {"onehop": "Which character cannot be a vegan?"},
        "character_set": NAMES[:3],
        "tests": {"T1": {"input_args": ["the stove", "smoked {eel}"]}, "T2": {"input_args": ["the pump", "curd"]}},
    },
]


@pytest.fixture
def folder(tmp_path, long_prose):
    """The data set's folder; two of its five books name a character."""
    root = tmp_path / "NoLiMa"
    (root / "needlesets").mkdir(parents=True)
    (root / "haystack" / "rand_shuffle").mkdir(parents=True)
    (root / "needlesets" / "needle_set.json").write_text(json.dumps(ENTRIES), encoding="utf-8")
    for i in range(1, 6):
        extra = {2: " Bram went home.", 4: " It was Ilse's coat."}.get(i, "")
        text = "".join(long_prose.shuffled(i).sentences) + extra
        (root / "haystack" / "rand_shuffle" / f"rand_book_{i}.txt").write_text(text, encoding="utf-8")
    return root


SHORT = {"lengths": (100, 200), "depths": (0.0, 0.5, 1.0)}


def test_the_default_grid_is_the_published_one(folder):
    recipes = nolima(path=folder).recipes
    assert len(recipes) == 200
    lengths, depths = sorted({r.length for r in recipes}), sorted({r.depth for r in recipes})
    assert lengths == sorted(LENGTHS)
    assert (lengths[0], lengths[-1], len(lengths)) == (1000, 50000, 20)
    steps = {b - a for a, b in itertools.pairwise(lengths)}
    assert steps <= {2578, 2579}
    assert depths == pytest.approx([i / 9 for i in range(10)])
    assert len(DEPTHS) == 10
    assert len({(r.length, r.depth) for r in recipes}) == 200
    assert {r.kind for r in recipes} == {"onehop"}
    assert all(r.literal is False for r in recipes)


def test_needles_and_tests_are_balanced(folder):
    recipes = nolima(40, path=folder).recipes
    counts = Counter(r.needle_id for r in recipes)
    assert counts == {"0101/T1": 8, "0101/T2": 8, "0101/T3": 8, "0102/T1": 8, "0102/T2": 8}
    assert len({r.haystack.name for r in recipes}) == 5
    assert set(Counter(r.haystack.name for r in recipes).values()) == {8}


def test_slots_are_filled_and_the_answer_is_the_name(folder, tokenizer):
    trials = list(nolima(20, path=folder, tokenizer=tokenizer, **SHORT))
    for trial in trials:
        start, end = trial.needle_span
        assert tokenizer.decode(trial.prompt_ids[start:end]).strip() == trial.needle
        assert trial.needle.count(trial.answer) == 1
        assert trial.answer in NAMES
        assert not re.search(r"\{(\d|CHAR)\}", trial.needle + trial.question)
    one = next(t for t in trials if t.needle_id == "0101/T2")
    assert one.needle == f"Last year {one.answer} moved to a loft above the Charles Bridge."
    assert one.question == "Which character lives in Prague?"
    assert one.relation == "world_knowledge"
    braces = next(t for t in trials if t.needle_id == "0102/T1")
    assert braces.needle == f"Next to the stove, {braces.answer} eats smoked {{eel}} in silence."


def test_the_entrys_own_words_stand_around_the_context(folder, make_tokenizer):
    tokenizer = make_tokenizer("no BOS")
    trials = list(nolima(10, path=folder, tokenizer=tokenizer, **SHORT))
    first = tokenizer.decode(next(t for t in trials if t.needle_id.startswith("0101")).prompt_ids)
    assert "<|system|>\nYou answer questions about stories.<|end|>\n<|user|>\nHere is a story:\n\n" in first
    assert re.search(r"\n\nQ: Which character lives in \w+\?\n\nReply with a name only\.<\|end\|>", first)
    second = tokenizer.decode(next(t for t in trials if t.needle_id.startswith("0102")).prompt_ids)
    assert "<|system|>" not in second
    assert "\nWhich character cannot be a vegan?<|end|>" in second
    assert len({t.template for t in trials}) == 2


def test_a_template_of_ones_own_replaces_them(folder, plain_tokenizer):
    template = PromptTemplate(before="BOOK ", after=" ASK {question}")
    trials = list(nolima(10, path=folder, template=template, tokenizer=plain_tokenizer, **SHORT))
    for trial in trials:
        text = plain_tokenizer.decode(trial.prompt_ids)
        assert text.startswith("BOOK ")
        assert text.endswith(f" ASK {trial.question}")
    assert len({t.template for t in trials}) == 1


def test_names_that_stand_in_a_book_are_not_drawn(folder):
    recipes = nolima(120, path=folder, **SHORT).recipes
    first = Counter(r.answer for r in recipes if r.needle_id.startswith("0101"))
    second = Counter(r.answer for r in recipes if r.needle_id.startswith("0102"))
    assert set(first) == {"Odile", "Tariq", "Wenna", "Piotr"}
    assert max(first.values()) - min(first.values()) <= 1
    assert set(second) == {"Odile", "Tariq"}


def test_kinds_are_balanced_and_entries_without_one_are_passed_over(folder):
    recipes = nolima(30, path=folder, kinds=("onehop", "twohop"), **SHORT).recipes
    assert Counter(r.kind for r in recipes) == {"onehop": 15, "twohop": 15}
    assert {r.needle_id[:4] for r in recipes if r.kind == "twohop"} == {"0101"}
    assert {r.question for r in recipes if r.needle_id == "0101/T3"} == {
        "Which character lives in London?",
        "Which character lives in England?",
    }
    with pytest.raises(ValueError, match="unknown kind 'threehop'; this set has onehop, twohop"):
        nolima(5, path=folder, kinds=("threehop",))
    with pytest.raises(ValueError, match="at least one kind"):
        nolima(5, path=folder, kinds=())


def test_the_seed_decides(folder, plain_tokenizer):
    def ids(seed):
        return [t.prompt_ids for t in nolima(6, path=folder, seed=seed, tokenizer=plain_tokenizer, **SHORT)]

    assert ids(42) == ids(42)
    assert not set(ids(42)) & set(ids(43))


def test_folder_parent_and_file_are_all_understood(folder):
    expected = nolima(5, path=folder, **SHORT).recipes
    assert nolima(5, path=str(folder.parent), **SHORT).recipes == expected
    assert nolima(5, path=folder / "needlesets" / "needle_set.json", **SHORT).recipes == expected


def test_a_needle_set_alone_works_with_haystacks_given(folder, tmp_path):
    alone = tmp_path / "mine.json"
    shutil.copy(folder / "needlesets" / "needle_set.json", alone)
    book = folder / "haystack" / "rand_shuffle" / "rand_book_1.txt"
    recipes = nolima(5, path=alone, haystack=[book], **SHORT).recipes
    assert {r.haystack.name for r in recipes} == {"rand_book_1"}
    with pytest.raises(FileNotFoundError, match=r"haystack="):
        nolima(5, path=alone)


def test_only_long_books_are_taken_where_there_are_no_others(folder):
    (folder / "haystack" / "rand_shuffle").rename(folder / "haystack" / "rand_shuffle_long")
    assert len({r.haystack.name for r in nolima(10, path=folder, **SHORT).recipes}) == 5


def change(row, field, value):
    new = json.loads(json.dumps(row))
    *path, last = field
    target = new
    for key in path:
        target = target[key]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return new


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (["id"], None, r"entry 2, field 'id'"),
        (["needle"], None, r"entry 2 \(0102\), field 'needle'"),
        (["needle"], "No slot for a name.", r"entry 2 \(0102\), field 'needle'.*\{CHAR\}"),
        (["needle"], "{CHAR} and {3}.", r"entry 2 \(0102\), field 'needle': nothing fills \{3\} in test 'T1'"),
        (["questions"], {}, r"entry 2 \(0102\), field 'questions'"),
        (["questions"], ["onehop"], r"entry 2 \(0102\), field 'questions'"),
        (["questions", "onehop"], 7, r"field 'questions', field 'onehop'"),
        (["questions", "onehop"], "Is it {CHAR}?", r"field 'onehop': nothing fills \{CHAR\}"),
        (["character_set"], [], r"entry 2 \(0102\), field 'character_set'"),
        (["character_set"], "Odile", r"entry 2 \(0102\), field 'character_set'"),
        (["character_set"], ["Bram"], r"entry '0102', field 'character_set': every name occurs"),
        (["tests"], None, r"entry 2 \(0102\), field 'tests'"),
        (["tests", "T2"], {"args": []}, r"entry 2 \(0102\), test 'T2', 'input_args'"),
        (["tests", "T2", "input_args"], ["x", 4], r"entry 2 \(0102\), test 'T2', 'input_args'"),
        (["task_template"], None, r"entry 2 \(0102\), field 'task_template'"),
        (["task_template"], "{question} {haystack}", r"field 'task_template'.*behind it"),
        (["task_template"], "{question} {haystack} {question}", r"field 'task_template'.*before"),
        (["task_template"], "{haystack}{haystack}{question}", r"field 'task_template'.*once"),
        (["system_prompt"], 5, r"entry 2 \(0102\), field 'system_prompt'"),
    ],
)
def test_a_malformed_entry_is_named_with_its_field(folder, field, value, message):
    rows = [ENTRIES[0], change(ENTRIES[1], field, value)]
    (folder / "needlesets" / "needle_set.json").write_text(json.dumps(rows), encoding="utf-8")
    with pytest.raises(ResultFileError, match=rf"needle_set\.json.*{message}"):
        nolima(5, path=folder, **SHORT)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not a usable JSON"),
        ("[]", "not a list of entries"),
        ('{"id": "x"}', "not a list of entries"),
        ("[3]", "entry 1: not a JSON object"),
        (json.dumps([ENTRIES[0], ENTRIES[0]]), "'0101' occurs 2 times"),
    ],
)
def test_a_malformed_set_is_refused(folder, text, message):
    (folder / "needlesets" / "needle_set.json").write_text(text, encoding="utf-8")
    with pytest.raises(ResultFileError, match=message):
        nolima(5, path=folder)


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="not a folder of NoLiMa"):
        nolima(5, path=tmp_path)
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        nolima(5, path=tmp_path / "nowhere")


# --- cache and Hub --------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the Hub's."""
    from huggingface_hub import constants

    root = tmp_path / "hub"
    root.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(root))
    return root


def assert_quick_advice(match, limit=2):
    started = time.perf_counter()
    with pytest.raises(FileNotFoundError, match=match) as caught:
        nolima(5)
    assert time.perf_counter() - started < limit
    for word in ("path=", "--path", "research use only", "amodaresi/NoLiMa"):
        assert word in str(caught.value)


def test_offline_the_error_is_quick_and_names_path(cache, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert_quick_advice("cannot be reached")


def test_without_a_hub_the_error_is_quick_and_names_path(cache, monkeypatch):
    """Nothing listens at the endpoint: one attempt, no retries."""
    from huggingface_hub import constants

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert_quick_advice("cannot be reached")


def test_a_host_that_never_answers_gives_the_same_advice(cache, monkeypatch):
    """The probe connects, the request is never answered: still no retries (the client alone would wait minutes)."""
    from huggingface_hub import constants

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(public, "PROBE_SECONDS", 0.3)
        assert_quick_advice("did not give it", limit=10)  # the client's first request sets itself up for 3 s


def test_a_cached_copy_is_used_offline(cache, folder, monkeypatch):
    repo = cache / "datasets--amodaresi--NoLiMa"
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    shutil.copytree(folder, snapshot)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(public, "hub_reachable", lambda: pytest.fail("asked the Hub although there is a copy"))
    assert nolima(5, **SHORT).recipes == nolima(5, path=folder, **SHORT).recipes


def test_half_a_cached_copy_is_not_used(cache, folder, monkeypatch):
    repo = cache / "datasets--amodaresi--NoLiMa"
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    shutil.copytree(folder / "needlesets", snapshot / "needlesets")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert_quick_advice("cannot be reached")
