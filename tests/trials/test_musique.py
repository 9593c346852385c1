"""MuSiQue read from files in the published format (the texts here are our own), and what happens without them."""

import json

import pandas as pd
import pytest

from locos_tl.results.files import ResultFileError
from locos_tl.trials.musique import musique

TOPICS = ("Harrow Bay", "Millford", "the Fenn family", "Grey Tides", "the copper guild")


def entry(number=0, **changes):
    """Twenty paragraphs, of which the 4th and the 18th support; the 4th holds the last hop."""
    paragraphs = [
        {
            "idx": i,
            "title": f"{TOPICS[i % 5].title()} {number}-{i}",
            "paragraph_text": f"Paragraph {i} of {number} tells of {TOPICS[i % 5]} — at length, in café Ünal.",
            "is_supporting": i in (3, 17),
        }
        for i in range(20)
    ]
    return {
        "id": f"2hop__{number}_7",
        "paragraphs": paragraphs,
        "question": f"Where does the author of book {number} live?",
        "question_decomposition": [
            {"id": 1, "question": "book >> author", "answer": "Odile", "paragraph_support_idx": 17},
            {"id": 2, "question": "#1 >> home", "answer": "Grey Tides", "paragraph_support_idx": 3},
        ],
        "answer": "Grey Tides",
        "answer_aliases": ["The Grey Tides", "Grey Tides"],
        "answerable": True,
    } | changes


def write(root, entries, name="musique_ans_v1.0_dev.jsonl"):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(e) for e in entries), encoding="utf-8")
    return path


def test_all_paragraphs_are_there_and_the_supporting_ones_are_tracked(tmp_path, tokenizer):
    path = write(tmp_path, [entry(i) for i in range(4)])
    for trial in musique(4, path=path, tokenizer=tokenizer):
        number = int(trial.trial_id.split("__")[1].split("_")[0])
        text = tokenizer.decode(trial.prompt_ids)
        assert text.count("<s>") == 1
        for paragraph in entry(number)["paragraphs"]:
            assert text.count(f"{paragraph['title']}\n{paragraph['paragraph_text']}") == 1
        spans = [tokenizer.decode(trial.prompt_ids[a:b]) for a, b in trial.supports]
        assert [s.split("\n")[0] for s in spans] == [
            f"Grey Tides {number}-3",
            f"The Fenn Family {number}-17",
        ]
        assert trial.needle_span == trial.supports[0]  # the last hop, though not the last paragraph
        assert trial.answers == ("Grey Tides", "The Grey Tides")
        assert trial.kind == "2hop"
        assert trial.question in text


def test_only_answerable_questions_are_asked(tmp_path):
    entries = [entry(0), entry(1, answerable=False), entry(2)]
    path = write(tmp_path, entries)
    assert {r.question[-7] for r in musique(2, path=path).recipes} <= {r["question"][-7] for r in entries}
    assert {r.trial_id.split("-")[-1] for r in musique(2, path=path).recipes} == {"2hop__0_7", "2hop__2_7"}
    with pytest.raises(ValueError, match="holds 2 questions, so n=3"):
        musique(3, path=path)


def test_the_split_is_found_in_a_folder(tmp_path):
    write(tmp_path, [entry(9)], "data/musique_ans_v1.0_train.jsonl")
    write(tmp_path, [entry(8)], "data/musique_full_v1.0_dev.jsonl")
    write(tmp_path, [entry(7)], "data/musique_ans_v1.0_dev.jsonl")
    assert musique(1, path=tmp_path).recipes[0].trial_id.endswith("2hop__7_7")
    with pytest.raises(FileNotFoundError, match="holds no table"):
        musique(1, path=write(tmp_path, [], "empty/notes.txt").parent)


def test_parquet_is_read_too(tmp_path):
    lines = write(tmp_path, [entry(i) for i in range(3)])
    pd.DataFrame([entry(i) for i in range(3)]).to_parquet(tmp_path / "validation.parquet")
    assert musique(3, path=tmp_path / "validation.parquet").recipes == musique(3, path=lines).recipes


def test_the_last_hop_without_a_decomposition(tmp_path):
    """Then it is the last supporting paragraph that holds the answer."""
    plain = entry(0, question_decomposition=[])
    assert musique(1, path=write(tmp_path, [plain])).recipes[0].last_hop == 3
    plain["answer"] = "elsewhere"
    assert musique(1, path=write(tmp_path, [plain])).recipes[0].last_hop == 17


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": " "}, "field 'question'"),
        ({"answer": None}, "field 'answer'"),
        ({"answer_aliases": "x"}, "field 'answer_aliases': not a list of texts"),
        ({"paragraphs": []}, "field 'paragraphs': missing, empty"),
        ({"paragraphs": [{"title": "t", "paragraph_text": "x"}]}, "paragraph 1, field 'is_supporting'"),
        ({"paragraphs": [{"title": "t"}]}, "paragraph 1, field 'paragraph_text'"),
        ({"paragraphs": [{"title": "t", "paragraph_text": "x", "is_supporting": False}]}, "none is supporting"),
        ({"question_decomposition": ["x"]}, "field 'question_decomposition'"),
        ({"question_decomposition": [{"paragraph_support_idx": [3]}]}, "field 'paragraph_support_idx': not a number"),
        (
            {"paragraphs": [{"idx": [0], "title": "t", "paragraph_text": "x", "is_supporting": True}]},
            "paragraph 1, field 'idx': not a number",
        ),
        ({"answerable": "false"}, "field 'answerable': neither true nor false"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, changes, message):
    path = write(tmp_path, [entry(0), entry(1, **changes)])
    with pytest.raises(ResultFileError, match=rf"dev\.jsonl, line 2.*{message}"):
        musique(1, path=path)
