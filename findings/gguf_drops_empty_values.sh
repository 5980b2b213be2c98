#!/bin/sh
# gguf-py 0.19.0: GGUFWriter.add_string(key, "") and add_array(key, []) write nothing and say nothing: the key is missing
# from the file, though the format has texts and lists of length 0, which GGUFReader reads (add_key_value writes them). So
# "there is no chat template, on purpose" cannot be told from "nobody said".
# Seen on 2026-11-28. Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gguf==0.19.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import importlib.metadata
import sys

from gguf import GGUFReader, GGUFValueType, GGUFWriter

path = sys.argv[1] + "/x.gguf"
w = GGUFWriter(path, "llama")
w.add_string("said.text", "x")
w.add_string("said.empty", "")
w.add_array("said.list", [])
w.add_bool("said.false", False)
w.add_uint32("said.zero", 0)
w.add_key_value("said.empty_by_key_value", "", GGUFValueType.STRING)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
fields = {k: v.contents() for k, v in GGUFReader(path).fields.items() if k.startswith("said.")}
print("gguf", importlib.metadata.version("gguf"), fields)
assert fields == {"said.text": "x", "said.false": False, "said.zero": 0, "said.empty_by_key_value": ""}
print("as seen")
PYTHON
