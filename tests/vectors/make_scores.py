"""Makes scores.json: BLEU and chrF2 of small corpora, and lines cut by 13a, from sacreBLEU.

    python3 -m venv VENV && VENV/bin/pip install sacrebleu && VENV/bin/python make_scores.py
"""
import json
import pathlib

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

CORPORA = {
    "plain": [
        ("A man in a blue shirt is standing on a ladder.", "A man in a blue shirt stands on a ladder."),
        ("Two dogs run through the snow.", "Two dogs are running through deep snow."),
        ("The girl eats an apple, a pear and 1,250.75 grapes.",
         "The girl eats an apple, a pear, and 1,250.75 grapes!"),
    ],
    "empty lines": [
        ("", "A man sleeps."), ("A man sleeps.", ""), ("", ""), ("  \t ", "x"),
        ("People walk down the long street at night.", "People walk along the long street at night."),
    ],
    "all empty": [("", ""), ("", "")],
    "nothing matches": [("x y z w v", "a b c d e"), ("p", "q")],
    "one-word lines": [("yes", "yes"), ("No", "no"), ("maybe", "perhaps"), ("stop!", "stop.")],
    "one word right": [("yes", "yes")],
    "short": [("a b c", "a b c d e f g"), ("a b", "a b")],
    "too long": [("a b c d e f g h i j", "a b c d e")],
    "no four-gram": [("the cat the dog sat here now", "the cat sat and the dog sat now here")],
    "cyrillic": [
        ("Мужчина в синей рубашке стоит на лестнице.", "Мужчина в СИНЕЙ рубашке стоит у лестницы."),
        ("Две собаки бегут по снегу.", "Две собаки бегут по глубокому снегу."),
    ],
    "chinese and japanese": [
        ("一个男人站在梯子上。", "一名男子站在梯子上。"), ("二匹の犬が雪の中を走る。", "二匹の犬が雪の上を走る。"),
        ("男 人 站 在 这 里", "男 人 站 在 那 里"),
    ],
    "hindi, arabic, thai": [
        ("एक आदमी सीढ़ी पर खड़ा है।", "एक आदमी सीढ़ियों पर खड़ा है।"),
        ("رجل يقف على سلم، ويبتسم.", "رجل يقف على السلم، ويضحك."), ("ผู้ชายยืนอยู่บนบันได", "ผู้ชายยืนบนบันได"),
    ],
    "greek and turkish capitals": [
        ("Ο ΑΝΔΡΑΣ ΕΙΝΑΙ ΕΔΩ ΣΗΜΕΡΑ.", "Ο άνδρας είναι εδώ σήμερα."), ("İSTANBUL IŞIK ve ışık", "istanbul ışık ve IŞIK"),
        ("ΟΔΟΣ ΣΟΦΟΣ ΛΟΓΟΣ ΜΕΡΟΣ", "οδος σοφος λογος μερος"),
    ],
    "german case": [
        ("Eine Frau fährt mit dem Fahrrad über die Straße.", "eine frau fährt mit dem Rad über die STRASSE."),
        ("ÄPFEL und Übermut tun selten gut", "Äpfel und übermut tun selten gut"),
    ],
    "marks": [
        ("He said: &quot;It's 5.5% -- or 3-4, not .5&quot; &amp; left... (twice)", "He said: \"It's 5.5% -- or 3-4, not 0.5\" & left ... (twice)"),
        ("e-mail@host.org/x_y~z [1] {2} <3> $4 #5 ^6 `7` *8* +9 =10 |11", "e-mail@host.org/x_y~z[1]{2}<3>$4#5^6`7`*8*+9=10|11"),
        ("a\u00a0b\u3000c \u2009d\u001ce", "a b c d e"), ("U.S.A., 1.000.000,00 and 1,a a,1 .a a.", "U.S.A. 1.000.000,00 and 1,a a,1 .a a."),
    ],
}
LINES = sorted({line for pairs in CORPORA.values() for pair in pairs for line in pair}) + [
    "<skipped>a<skipped> b", "&lt;&gt;&amp;lt;", "1-2 a-b 3--4 5 - 6", ",,.. ,. 1,.2", "é.ü,ß .中。文,", "-", "''",
]

result = {"corpora": [], "lines": [{"line": line, "tokens": Tokenizer13a()(line)} for line in LINES]}
for name, pairs in CORPORA.items():
    hypotheses, references = [p[0] for p in pairs], [p[1] for p in pairs]
    for lowercase in (False, True):
        bleu, chrf = BLEU(lowercase=lowercase), CHRF(lowercase=lowercase)
        score = bleu.corpus_score(hypotheses, [references])
        result["corpora"].append({
            "name": name, "lowercase": lowercase, "hypotheses": hypotheses, "references": references,
            "bleu": score.score, "brevity_penalty": score.bp, "precisions": score.precisions,
            "chrf2": chrf.corpus_score(hypotheses, [references]).score,
            "bleu_signature": str(bleu.get_signature()).rsplit("|version", 1)[0],
            "chrf2_signature": str(chrf.get_signature()).rsplit("|version", 1)[0]})
(pathlib.Path(__file__).parent / "scores.json").write_text(json.dumps(result, ensure_ascii=False, indent=0))
