#!/bin/sh
# A tokenizer of transformers 5.24.0 called with two texts, the second of them empty, gives what it gives for one text: no
# second [SEP], no second kind. In lists of texts an empty second one counts, and so does it in the tokenizers package.
# Seen on 2026-11-28. Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.24.0
"$folder/venv/bin/python" - <<'PYTHON'
from transformers import BertTokenizer

t = BertTokenizer(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "a": 5})
one, listed = t("a", "").input_ids, t(["a"], [""]).input_ids[0]
print("alone:", one, "in a list:", listed, "by tokenizers:", t._tokenizer.encode("a", "").ids)
assert one == [2, 5, 3] and listed == t._tokenizer.encode("a", "").ids == [2, 5, 3, 3]
print("as seen")
PYTHON
