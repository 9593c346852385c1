"""Haystacks: cut at sentences, searched by words, and honest about repeating themselves."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locos_tl.trials.haystack import Haystack, bundled_haystack, encode_all, read_haystacks, split_sentences


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("One. Two! Three? Four", ["One.", " Two!", " Three?", " Four"]),
        ("He said \u201cgo.\u201d Then he went.", ["He said \u201cgo.\u201d", " Then he went."]),
        ('He said "go!" Then he went.', ['He said "go!"', " Then he went."]),
        ("(It rained.) The roof held.", ["(It rained.)", " The roof held."]),
        ("Wait... No.", ["Wait...", " No."]),
        ("It cost 3.50 in all. Cheap.", ["It cost 3.50 in all.", " Cheap."]),
        ("In 1900. 12 men came.", ["In 1900.", " 12 men came."]),
        ("First line.\nSecond line.", ["First line.\n", "Second line."]),
        ("First part.\n\n  Second part.", ["First part.\n\n", "  Second part."]),
        ("A line that is\nwrapped here. Next.", ["A line that is\nwrapped here.", " Next."]),
        ("雨が降った。風も吹いた。", ["雨が降った。", "風も吹いた。"]),
        ("वर्षा हुई। हवा चली।", ["वर्षा हुई।", " हवा चली।"]),
        ("It was I. They left.", ["It was I.", " They left."]),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text, pieces):
    assert list(split_sentences(text)) == pieces


@pytest.mark.parametrize(
    "text",
    [
        "Mr. Low and Dr. Hay met Prof. Ash.",
        "J. R. Low wrote it.",
        "Fruit, e.g. Plums, sells.",
        "'What?' he said.",
        '"Stop!" cried the clerk.',
        "They sold pots, etc. and pans.",
        "No end in sight",
        "The last one.  \n",
    ],
)
def test_these_end_no_sentence(text):
    assert split_sentences(text) == (text,)


def test_long_text_without_full_stops_is_cut_at_its_lines():
    verse = "\n".join(f"a line of verse that has no stop {i}" for i in range(100))
    pieces = split_sentences(verse)
    assert len(pieces) == 100
    assert pieces[1] == "a line of verse that has no stop 1\n"


@given(st.text(alphabet="aAMr.!? \n\"'\u201d。1(\u00a0", max_size=60))
def test_the_pieces_joined_are_the_text(text):
    pieces = split_sentences(text)
    assert "".join(pieces) == text
    assert all(pieces)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Anna", False),
        ("annals", True),
        ("ANNALS", True),
        ("the annals", True),
        ("annals of the old mill", True),
        ("nnal", False),
        ("Tom", True),
        ("mill.", True),
        ("Straße", True),
        ("STRASSE", True),
    ],
)
def test_contains_looks_for_whole_words_whatever_case_or_line(text, found):
    haystack = Haystack("h", ("The annals of the old\nmill.", " Tom's barn is in the Straße."))
    assert haystack.contains(text) is found


def test_contains_looks_for_parts_where_words_are_not_spaced():
    assert Haystack("h", ("昨日安娜来了。",)).contains("安娜")
    assert not Haystack("h", ("昨日有人来了。",)).contains("安娜")


@pytest.mark.parametrize("sentences", [(), ("",), (" \n", "\t")])
def test_a_haystack_without_text_is_refused(sentences):
    with pytest.raises(ValueError, match="'empty' holds no text"):
        Haystack("empty", sentences)


def test_tokens_are_those_of_the_text_over_and_over(plain_tokenizer, prose):
    once = [encode_all(plain_tokenizer, [s])[0] for s in prose.sentences]
    n_once = sum(map(len, once))
    out = prose.tokens(plain_tokenizer, 2 * n_once + 5)
    ends = list(accumulate(map(len, out)))
    assert ends[-2] < 2 * n_once + 5 <= ends[-1]
    assert out[:10] == once
    assert plain_tokenizer.decode([i for ids in out for i in ids]).startswith(
        "".join(prose.sentences) + " " + "".join(prose.sentences) + " The ferry"
    )


def test_the_share_of_unique_text_counts_rounds_and_repeated_sentences(plain_tokenizer, prose):
    once = sum(len(encode_all(plain_tokenizer, [s])[0]) for s in prose.sentences)
    assert prose.unique_share(plain_tokenizer, once) == 1.0
    assert prose.unique_share(plain_tokenizer, once // 2) == 1.0
    assert prose.unique_share(plain_tokenizer, 4 * once) == pytest.approx(0.25)
    doubled = Haystack("doubled", (*prose.sentences, *(" " + s.strip().upper() for s in prose.sentences[:1])))
    extra = len(encode_all(plain_tokenizer, [doubled.sentences[-1]])[0])
    assert doubled.unique_share(plain_tokenizer, once + extra) == pytest.approx(once / (once + extra))


def test_haystacks_of_two_tokenizers_do_not_mix(make_tokenizer, prose):
    bytes_, prefixed = make_tokenizer(bos=False), make_tokenizer(kind="prefixed")
    assert prose.tokens(bytes_, 30) != prose.tokens(prefixed, 30)
    assert prose.tokens(bytes_, 30)[0] == encode_all(bytes_, [prose.sentences[0]])[0]


def test_shuffling_keeps_the_sentences_and_depends_on_the_seed(prose):
    one, other = prose.shuffled(1), prose.shuffled(2)
    assert one == prose.shuffled(1)
    assert one.sentences != other.sentences
    assert sorted(s.strip() for s in one.sentences) == sorted(s.strip() for s in prose.sentences)
    assert not one.sentences[0].startswith(" ")
    assert all(s.startswith(" ") and not s.startswith("  ") for s in one.sentences[1:])
    assert one.name != other.name


def test_files_become_haystacks_in_order(tmp_path):
    (tmp_path / "b.txt").write_text("Second. Book.", encoding="utf-8")
    (tmp_path / "a.txt").write_text("\ufeff\n First. Book.\n\n", encoding="utf-8")
    (tmp_path / "notes.md").write_text("No book.", encoding="utf-8")
    haystacks = read_haystacks(tmp_path)
    assert [h.name for h in haystacks] == ["a", "b"]
    assert haystacks[0].sentences == ("First.", " Book.")
    assert [h.name for h in read_haystacks([tmp_path / "b.txt", str(tmp_path / "a.txt")])] == ["b", "a"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b" \n ", "empty"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"word " * 1000, "no place to go"),
        (None, "no such file or folder"),
    ],
)
def test_unusable_files_are_named(tmp_path, data, message):
    path = tmp_path / "mine.txt"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"mine\.txt.*{message}"):
        read_haystacks(path)


def test_a_folder_without_text_files_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no \.txt file"):
        read_haystacks(tmp_path)


def test_the_bundled_prose_is_long_and_repeats_nothing(plain_tokenizer):
    haystack = bundled_haystack()
    sentences = [s.strip() for s in haystack.sentences]
    assert len("".join(haystack.sentences).split()) >= 8000
    assert len(set(sentences)) == len(sentences)
    assert max(len(s.split()) for s in sentences) < 60
    assert haystack.unique_share(plain_tokenizer, 4000) == 1.0
