--- What a file is: of the formats that moth.load reads, or of which other, and what reads that.
local B = require "moth_lua"
local M = {}

-- Names of what begins with these bytes (at a place, from 1), and what to do with it.
local images = "moth.data.read_image(path) reads its pixels"
local other_image = "convert it to PNG, JPEG or WebP, which moth.data.read_image reads"
local tables = "moth has no reader of it; in Python, pandas writes it as CSV (moth.data.CSV), numpy.save an array of it"
local sound = "moth.audio.load(path) reads its samples"
local packed = "unpack it"
local magics = {
  { "GGUF", "a GGUF file", "moth.gguf.load reads its tensors, moth.models.load its model" },
  { "PAR1", "a Parquet file", tables }, { "ARROW1", "an Arrow file", tables }, { "FEA1", "a Feather file", tables },
  { "\137HDF\r\n\26\n", "an HDF5 file", "moth.data.HDF5(path) reads its arrays" },
  { "MATLAB 5.0", "a file of MATLAB's", "moth has no reader of it; in Python, scipy.io.loadmat and numpy.savez" },
  { "\255\216\255", "a JPEG image", images }, { "\137PNG\r\n\26\n", "a PNG image", images },
  { "GIF8", "a GIF image", other_image }, { "BM....%z%z%z%z", "a BMP image", other_image },
  { "II%*%z", "a TIFF image", other_image }, { "MM%z%*", "a TIFF image", other_image },
  { "RIFF....WEBP", "a WebP image", images },
  { "RIFF....WAVE", "sound (WAV)", sound }, { "fLaC", "sound (FLAC)", sound }, { "OggS", "sound (Ogg)", sound },
  { "%z%z[\8\9\11-\14][\1-\8]", "an IDX file, as MNIST's", "moth.datasets.IDX(images, labels) reads a pair of them" },
  { "SQLite format 3", "a database of SQLite", "moth.data.SQLite(path, table) reads its rows" },
  { "....TFL3", "a model of TensorFlow Lite", "export it to ONNX, which moth.onnx.load reads" },
  { "%%PDF", "a PDF file", "take its text out by another program" },
  { "\127ELF", "a library or a program", "moth.library.load opens libraries of ops, ffi.load others" },
  { "%(\181/\253", "compressed by zstd", packed }, { "\2537zXZ", "compressed by xz", packed },
  { "BZh%d", "compressed by bzip2", packed }, { "\4\34M\24", "compressed by lz4", packed },
  -- a protocol buffer that begins with a version, as ONNX's models do, and a text, a message or a number behind it
  { "\8[\1-\63][\18\26\34\40\58\66]", "what looks like an ONNX model", "moth.onnx.load reads it as a program" },
}
-- How Torch7's files of a table or an object begin, binary and ascii.
local torch7 = { "^[\3\4]%z%z%z\1%z%z%z", "^[34]\n1\n%d+\n" }

-- Text, by the end of its name.
local texts = {
  jsonl = { "JSON, a value in each line", "moth.data.JSONL(path) reads them" },
  json = { "JSON", "moth.json.decode reads its text; moth.models.load takes the folder that a config.json is in, "
    .. "moth.tokenizer.load a tokenizer.json" },
  csv = { "a table as text", "moth.data.CSV(path) reads it" },
  tsv = { "a table as text", 'moth.data.CSV(path, { delimiter = "\\t" }) reads it' },
  txt = { "text", "moth.data.TextLines(path) reads its lines" },
  lua = { "Lua's text", "dofile runs it" },
}
texts.ndjson = texts.jsonl

local function is_text(head) return head ~= "" and not head:find "[%z\1-\8\14-\31\127]" end

-- The kind of text by its name, else by how it begins.
local function text_of(path, head)
  local line = head:match "^%s*([^\n]*)"
  if head:find "^version https://git%-lfs" then
    return { "a pointer of Git LFS, not the file that it stands for", "git lfs pull fetches the file" }
  end
  if line:lower():find "^<!doctype html" or line:lower():find "^<html" then
    return { "a web page, as a download gives that failed", "fetch the file again; look at the page for the reason" }
  end
  local found = texts[path:lower():match "%.(%w+)$" or ""]
  if found then return found end
  if line:find "^{.*}%s*$" and head:find "\n%s*{" then return texts.jsonl end
  if line:find "^[{%[]" and head:find '^%s*[{%[][%s]*["%d%[{%]}-]' then return texts.json end
  return texts.txt
end

-- What a file is that moth.load does not read, and what to do; nil: nobody knows.
local function foreign(path, head)
  if head == "" then return "an empty file", "what should have written it did not, or not yet" end
  if head:sub(1, 2) == "\31\139" then
    local inside = texts[path:lower():match "%.(%w+)%.gz$" or ""]
    if path:lower():find "idx%d%-ubyte%.gz$" then
      return "an IDX file, compressed by gzip", "moth.datasets.IDX(images, labels) reads a pair of them"
    end
    return "compressed by gzip", inside and inside[2] .. ", compressed too" or "gunzip it"
  end
  for _, known in ipairs(magics) do
    if head:find("^" .. known[1]) then return known[2], known[3] end
  end
  if is_text(head) then return unpack(text_of(path, head)) end
end

--- "zip" (NumPy's .npz, PyTorch's .pt), "npy", "safetensors" or "t7" (Torch7's), by a file's content, for Torch7's also
-- by its name; or nil and what the file is.
function M.of(path)
  local kind, why = B.file_kind(path)
  if kind or why then return kind, why end
  local f = io.open(path, "rb")
  local head = f and f:read(512) or ""
  if f then f:close() end
  for _, pattern in ipairs(torch7) do if head:find(pattern) then return "t7" end end
  if head ~= "" and path:find "%.t7$" then return "t7" end
  local what, hint = foreign(path, head)
  if not what then
    return nil, "this is none of the formats that moth reads: safetensors, .npy, .npz, PyTorch's .pt (damaged or "
      .. "truncated?)"
  end
  return nil, ("this is %s; moth.load reads safetensors, .npy, .npz, PyTorch's .pt and Torch7's .t7\nHINT: %s"):format(
    what, hint)
end

-- Who writes files of these endings; moth.save does not.
local nobody = "moth does not write them"
local writers = {
  npz = "moth.save writes .npy, which holds one tensor", gguf = "moth.models.save_gguf writes them",
  onnx = "moth.onnx.export writes them",
  png = "moth.plot.save_image writes them", jpg = "moth.plot.save_image writes .png",
  json = "moth.json.encode gives their text", h5 = nobody, hdf5 = nobody, t7 = nobody, parquet = nobody,
}
writers.jpeg = writers.jpg

--- What to do instead of moth.save where the end of a name is another format's; nil: it may be saved.
function M.written_by(path) return writers[path:lower():match "%.(%w+)$" or ""] end

return M
