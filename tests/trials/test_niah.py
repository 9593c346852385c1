"""Literal needles read from files in the published format (the texts here are our own)."""

import json

import pytest

from locos_tl.results.files import ResultFileError
from locos_tl.trials.niah import niah

ROWS = [
    {
        "needle": "\nThe nicest thing to do in Harrow Bay is to row out to the lighthouse at low tide.\n",
        "question": "What is the nicest thing to do in Harrow Bay?",
        "real_needle": "row out to the lighthouse at low tide",
    },
    {
        "needle": "Seven copper bells ring when the cheese is ready.",
        "question": "What happens when the cheese is ready?",
        "real_needle": "Seven copper bells ring",
    },
    {
        "needle": 'The code word of the guild is "quince jam".',
        "question": "What is the code word of the guild?",
        "real_needle": "quince jam",
    },
]
SHORT = {"lengths": (120, 240), "depths": (0.0, 0.5, 1.0)}


def write(root, rows=ROWS):
    (root / "needles.jsonl").write_text("\n".join(json.dumps(r) if not isinstance(r, str) else r for r in rows))
    return root


@pytest.fixture
def folder(tmp_path, long_prose):
    """``needles.jsonl`` and part1 .. part3, as published; part2 holds two files."""
    sentences = [s.strip() for s in long_prose.sentences]
    for i, part in enumerate(("part1", "part2", "part3")):
        (tmp_path / "set" / part).mkdir(parents=True)
        mine = sentences[i * 100 : (i + 1) * 100]
        halves = (mine[:50], mine[50:]) if part == "part2" else (mine,)
        for j, half in enumerate(halves):
            (tmp_path / "set" / part / f"text{j}.txt").write_text(" ".join(half), encoding="utf-8")
    return write(tmp_path / "set")


def test_each_needle_goes_into_its_own_haystack(folder, tokenizer):
    grid = niah(12, path=folder, tokenizer=tokenizer, **SHORT)
    assert {(r.needle_id, r.haystack.name) for r in grid.recipes} == {("1", "part1"), ("2", "part2"), ("3", "part3")}
    for trial in grid:
        row = ROWS[int(trial.needle_id) - 1]
        start, end = trial.needle_span
        assert tokenizer.decode(trial.prompt_ids[start:end]).strip() == row["needle"].strip() == trial.needle
        assert (trial.question, trial.answer) == (row["question"], row["real_needle"])
        assert (trial.kind, trial.literal) == ("literal", True)
        assert trial.unique_share == 1.0


def test_a_part_is_all_its_files(folder):
    two = next(r.haystack for r in niah(3, path=folder, **SHORT).recipes if r.needle_id == "2")
    assert two.contains("as page 10 says")
    assert two.contains("as page 19 says")
    assert not two.contains("as page 9 says")


def test_draws_are_balanced_and_the_seed_decides(folder, plain_tokenizer):
    recipes = niah(path=folder).recipes
    assert len(recipes) == 60
    assert sorted([r.needle_id for r in recipes].count(i) for i in "123") == [20, 20, 20]
    assert len({(r.length, r.depth) for r in recipes}) == 20

    def ids(seed):
        return [t.prompt_ids for t in niah(6, path=folder, seed=seed, tokenizer=plain_tokenizer, **SHORT)]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_the_real_needle_alone_can_be_the_span(folder, tokenizer):
    """As Wu et al. count it: the same text and length, the span only on the answering part."""
    whole = niah(12, path=folder, tokenizer=tokenizer, **SHORT)
    part = niah(12, path=folder, tokenizer=tokenizer, span="real_needle", **SHORT)
    for a, b in zip(whole, part, strict=True):
        row = ROWS[int(b.needle_id) - 1]
        start, end = b.needle_span
        assert tokenizer.decode(b.prompt_ids[start:end]).strip() == row["real_needle"] == b.needle
        assert end - start < a.needle_span[1] - a.needle_span[0]
        sentence = row["needle"].strip()
        assert sentence in tokenizer.decode(b.prompt_ids)
        assert b.answer == a.answer
        assert b.n_tokens == a.n_tokens


def test_a_real_needle_that_is_not_in_the_needle_cannot_be_the_span(folder):
    write(folder, [*ROWS[:2], ROWS[2] | {"real_needle": "plum jam"}])
    assert len(niah(3, path=folder, **SHORT)) == 3
    with pytest.raises(ResultFileError, match=r"needle 3, field 'real_needle': occurs 0 times.*span='needle'"):
        niah(3, path=folder, span="real_needle", **SHORT)
    with pytest.raises(ValueError, match="unknown span 'all'; choose from needle, real_needle"):
        niah(3, path=folder, span="all")


def test_text_files_beside_the_needles_are_haystacks_too(folder, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for i in (1, 2, 10):
        part = {1: "part1", 2: "part2", 10: "part3"}[i]
        (flat / f"text{i}.txt").write_text((folder / part / "text0.txt").read_text())
    recipes = niah(6, path=write(flat), **SHORT).recipes
    assert {(r.needle_id, r.haystack.name) for r in recipes} == {("1", "text1"), ("2", "text2"), ("3", "text10")}


def test_a_single_haystack_serves_every_needle(folder, tmp_path):
    one = tmp_path / "one"
    one.mkdir()
    (one / "only.txt").write_text((folder / "part1" / "text0.txt").read_text())
    assert {r.haystack.name for r in niah(6, path=write(one), **SHORT).recipes} == {"only"}


def test_haystacks_of_ones_own_go_with_the_file_alone(folder, tmp_path):
    alone = tmp_path / "mine.jsonl"
    alone.write_text((folder / "needles.jsonl").read_text())
    books = [folder / "part1" / "text0.txt", folder / "part3" / "text0.txt"]
    recipes = niah(12, path=alone, haystack=books, **SHORT).recipes
    assert {(r.needle_id, r.haystack.sentences[0]) for r in recipes} == {
        (needle, book.read_text().split(". ")[0].removesuffix(".") + ".") for needle in "123" for book in books
    }


def test_the_folder_above_is_understood(folder):
    assert niah(3, path=folder.parent, **SHORT).recipes == niah(3, path=folder, **SHORT).recipes


@pytest.mark.parametrize("n_parts", [0, 2])
def test_haystacks_that_do_not_match_the_needles_are_refused(folder, n_parts):
    for part in ("part1", "part2", "part3")[n_parts:]:
        for file in (folder / part).iterdir():
            file.unlink()
    with pytest.raises(ResultFileError, match=f"{n_parts} haystacks for 3 needles"):
        niah(3, path=folder)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROWS[1] | {"question": ""}, "needle 2, field 'question'"),
        ({"needle": "x", "question": "y"}, "needle 2, field 'real_needle'"),
        (ROWS[1] | {"needle": 4}, "needle 2, field 'needle'"),
        ([], "needle 2: not a JSON object"),
        ("{", "line 2"),
    ],
)
def test_a_malformed_line_is_named(folder, row, message):
    write(folder, [ROWS[0], row])
    with pytest.raises(ResultFileError, match=message):
        niah(3, path=folder)


def test_an_empty_file_is_refused(folder):
    write(folder, [])
    with pytest.raises(ResultFileError, match="holds no needles"):
        niah(3, path=folder)


def test_without_a_path_the_error_says_what_to_give():
    with pytest.raises(FileNotFoundError, match=r"needles\.jsonl.*path=.*--path"):
        niah()


def test_a_folder_without_needles_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no needles\.jsonl"):
        niah(path=tmp_path)
