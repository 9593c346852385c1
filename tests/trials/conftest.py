"""Small real tokenizers, trained here, with every habit that matters: BOS or none, chat templates of each kind."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from locos_tl.trials.haystack import Haystack

PROSE = (
    "The ferry left the quay at noon and the gulls went after it.",
    "A kettle sang in the back room while rain came down on the slates.",
    "Nobody had swept the stairs since the harvest, so dust lay on each step.",
    "Three carts of barley stood by the mill until the wheel turned again.",
    "When the lamp went out, the clerk felt along the shelf for matches.",
    "Somewhere below the bridge an oar knocked against a post.",
    "The orchard wall is lower on the north side, where the frost broke it.",
    "By evening the smoke had thinned and the hills came back one by one.",
    "She counted 41 jars, 7 crates and a sack of salt in the cellar.",
    "Letters for the upper farm are left in a tin box beside the gate.",
)
_TURNS = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
_ASK = "{{ '<|assistant|>\n' }}"
CHATS = {
    "writes BOS": "{{ bos_token }}" + _TURNS + _ASK,
    "no BOS": _TURNS + _ASK,
    "two BOS": "{{ bos_token }}{{ bos_token }}" + _TURNS + _ASK,
    "thinking": _TURNS
    + _ASK
    + "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}",
    "always thinks": _TURNS + _ASK + "{{ '<think>\n' }}",
    "no system": "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + _TURNS
    + _ASK,
    "drops system": _TURNS.replace("in messages", "in messages if m.role == 'user'") + _ASK,
    "drops user": "{% for m in messages %}<|{{ m.role }}|>\n<|end|>\n{% endfor %}" + _ASK,
}


def _trained(kind):
    """A tokenizer without special tokens: "bytes" (GPT-2, Qwen) or "prefixed" (Llama-2: a space put in front)."""
    if kind == "bytes":
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    elif kind == "prefixed":
        backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False, fuse_unk=True))
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        backend.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
        backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(content=" ", left=1, right=0)]
        )
        alphabet = ["\n", *(chr(i) for i in range(33, 127))]
    else:
        raise AssertionError(kind)
    specials = ["<unk>"] if kind == "prefixed" else []
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, special_tokens=specials, show_progress=False
    )
    backend.train_from_iterator(
        [*PROSE, "Anna lives near the Eiffel Tower. Which character has been to Paris?"], trainer
    )
    return backend


@pytest.fixture(scope="session")
def make_tokenizer():
    """Tokenizers by habit; the same habits give the same object."""
    made = {}

    def make(chat=None, *, bos=True, adds_bos=True, kind="bytes"):
        habits = (chat, bos, adds_bos, kind)
        if habits in made:
            return made[habits]
        backend = Tokenizer.from_str(_trained(kind).to_str())
        names = ["</s>", "<|user|>", "<|system|>", "<|assistant|>", "<|end|>", *(["<s>"] if bos else [])]
        backend.add_special_tokens([AddedToken(name, special=True) for name in names])
        if bos and adds_bos:
            backend.post_processor = processors.TemplateProcessing(
                single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", backend.token_to_id("<s>"))]
            )
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend,
            eos_token="</s>",
            **({"bos_token": "<s>"} if bos else {}),
            **({"unk_token": "<unk>"} if kind == "prefixed" else {}),
        )
        tokenizer.chat_template = CHATS[chat] if chat else None
        made[habits] = tokenizer
        return tokenizer

    return make


@pytest.fixture(scope="session")
def tokenizer(make_tokenizer):
    """Byte-level BPE that puts BOS in front, with a chat template that does so too: the risky pair."""
    return make_tokenizer("writes BOS")


@pytest.fixture(scope="session")
def plain_tokenizer(make_tokenizer):
    """Byte-level BPE with neither BOS nor chat template: the prompt is the text."""
    return make_tokenizer(bos=False)


@pytest.fixture(scope="session")
def prose():
    """A haystack of ten different sentences."""
    return Haystack("prose", (PROSE[0], *(" " + sentence for sentence in PROSE[1:])))


@pytest.fixture(scope="session")
def long_prose():
    """300 different sentences, so that contexts of some thousand tokens repeat nothing."""
    sentences = [f"{s[:-1]}, as page {page} says." for page in range(30) for s in PROSE]
    return Haystack("long-prose", (sentences[0], *(" " + sentence for sentence in sentences[1:])))
