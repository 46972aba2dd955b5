"""Makes bpe_vocab.json, bpe_merges.txt and bpe_ids.json: a byte-level BPE in GPT-2's format, learnt
by the package `tokenizers` from the texts below, and the ids that it gives to other texts.

    python3 -m venv VENV && VENV/bin/pip install tokenizers && VENV/bin/python make_bpe.py
"""
import json
import pathlib

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
LEARN = [
    "The quick fox doesn't see the slow fox; they've met, and I'm sure he'll say it's fine.",
    "She said: 'We're late!' -- and they'd have to run 100 metres in 12.5 seconds.",
    "Die schnelle Füchsin läuft über die große Straße, während zwei Männer zuschauen.",
    "Быстрая лиса бежит по улице, а два человека смотрят на неё.",
    "素早い狐が通りを走る。二人の男が見ている。",
    "α, β und γ sind griechisch. Ωραία μέρα!",
    "def f(x):\n    return x  + 1\n\n\nprint(f(2))\t# 3\r\n",
] * 3
TEXTS = LEARN[:7] + [
    "", " ", "  ", "\n", "\n\n", " \n ", "a", " a", "a ", "  a  b   ", "\t\ta\n", "a\r\nb\r\n\r\nc",
    "'s", "'S", "it's it'S 'twas 'llama ''re", " 's 'd'll", "don\u2019t", "12 345,67 ½ ² ⅷ ٣٤ 𝟙𝟚",
    "e\u0301 cafe\u0301 n\u0303", "नमस्ते दुनिया", "ภาษาไทย", "한국어 문장", "🦊🦊 👩‍👩‍👧 🇩🇪",
    "a\u00a0b \u00a0 c", "a\u2003b\u2028c\u2029d\u3000e", "a\u200bb\ufeffc", "a\u0085b", "x\u001cy",
    "...!?--  ((a))", "_under_score", "ABC déjà-vu", "ǅ ʰ ª º", "\u0000\u0001\u007f", "<|endoftext|>",
    "aaaaaaaaaaaaaaaaa thethethethe foxfoxfox", "улицаулица", "über" * 9,
]

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trainer = trainers.BpeTrainer(
    vocab_size=460, min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
tokenizer.train_from_iterator(LEARN, trainer)
model = json.loads(tokenizer.to_str())["model"]
merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
(HERE / "bpe_vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False))
(HERE / "bpe_merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
# Without the special token, which the reference finds in any text.
plain = Tokenizer(models.BPE(model["vocab"], [tuple(m.split(" ")) for m in merges]))
plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
ids = [{"text": text, "ids": plain.encode(text).ids} for text in TEXTS]
(HERE / "bpe_ids.json").write_text(json.dumps(ids, ensure_ascii=False, indent=0))
