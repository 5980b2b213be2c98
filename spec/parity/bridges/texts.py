"""Texts that tokenizers are trained on, and 200 to try: several scripts, blanks, marks, pieces that look special."""
import random

CORPUS = ["The quick brown fox jumps over the lazy dog, doesn't it? I'll say so: 3.14159 times, at 12:30.",
          "Größe, façade, naïve, Ångström, Straße – „Zitat“ … ﬁne ﬂow ½ ² ™ ① Ⅷ ㎏", "Привет, мир! Как дела? Ёлка и йод.",
          "今日は、世界。東京へ行きました。吾輩は猫である ｶﾀｶﾅ ﾃﾞｽ Ｗｉｄｅ　ＡＢＣ", "你好，世界！我们去北京。", "안녕하세요 세계", "नमस्ते दुनिया क़िला",
          "مرحبا بالعالم ١٢٣", "שלום עולם", "สวัสดีชาวโลก", "def f(x):\n\treturn x**2  # comment\r\n\r\n  if x != y: pass", "🙂👍🏽 👨‍👩‍👧 🇩🇪 ❤️",
          "e\u0301a\u0308 \u00a0\u200b\u2028\ufeff İI ıi ΣΑΣ ß ǅ", "http://example.com/?q=1&r=%20 a_b-c@d.org <tag/> $5.00 50%"] * 3
PIECES = [*"\n\t  .,!?'\"-<>|/@#1٣½éßİ🙂世한\u0301\u00a0\u200d", "'s", "'LL", "<|end|>", "[MASK]", "▁", "##ing", "Ġ", "\r\n", "    ", "\x00", "\x7f"]
CHARACTERS = sorted({c for line in CORPUS for c in line})


def texts():
    out = ["", " ", "\n", "a", "<|end|><|end|>", "x <|end|> y", " [MASK] ", "a" * 300]
    while len(out) < 200:
        k = random.random()
        line = random.choice(CORPUS)
        at = random.randrange(len(line))
        if k < 0.5:
            out.append(line[at:at + random.randrange(80)])
        elif k < 0.8:
            out.append("".join(random.choice(CHARACTERS) for _ in range(random.randrange(25))))
        else:
            out.append("".join(random.choice(PIECES) + line[at:at + random.randrange(6)] for _ in range(random.randrange(8))))
    return out
