--- GGUF files of a language model: moth.gguf.load, and moth.models.load, which makes a model and a tokenizer of them.
-- (The parser by itself is spec/fuzz/fuzz_gguf.c.) Fields and tensors are changed one by one, or bytes of the file.
local ffi = require "ffi"
local moth = require "moth"
local damage = require "fuzz.damage"

local U8, I8, U32, I32, F32, BOOL, STRING, ARRAY, U64, F64 = 0, 1, 4, 5, 6, 7, 8, 9, 10, 12
local ctypes = { [U8] = "uint8_t[1]", [I8] = "int8_t[1]", [2] = "uint16_t[1]", [3] = "int16_t[1]",
  [U32] = "uint32_t[1]",
  [I32] = "int32_t[1]", [F32] = "float[1]", [BOOL] = "uint8_t[1]", [U64] = "uint64_t[1]", [11] = "int64_t[1]",
  [F64] = "double[1]" }

local function number(kind, v)
  local box = ffi.new(ctypes[kind])
  box[0] = (kind == F32 or kind == F64) and v or ffi.cast("int64_t", v)
  return ffi.string(box, ffi.sizeof(box))
end
local function u32(v) return number(U32, v) end
local function u64(v) return number(U64, v) end
local function text(s) return u64(#s) .. s end

local function value(kind, v)
  if kind == STRING then return text(tostring(v)) end
  if kind == ARRAY and type(v) ~= "table" then v = { kind = U8 } end
  if kind == ARRAY then
    local parts = { u32(v.kind), u64(v.n or #v) }
    for i = 1, #v do parts[i + 2] = value(v.kind, v[i]) end
    return table.concat(parts)
  end
  return number(kind, tonumber(v) or 0)
end

local ITEM = { [0] = 4, [1] = 2, [2] = 18, [8] = 34, [30] = 2 } -- bytes of an element or block
local BLOCK = { [2] = 32, [8] = 32 }

local function write(file)
  local parts, offset, data = { "GGUF", u32(file.version or 3), u64(file.count or #file.tensors),
    u64(#file.fields) }, 0, {}
  for _, f in ipairs(file.fields) do parts[#parts + 1] = text(f[1]) .. u32(f[2]) .. value(f[2], f[3]) end
  for _, t in ipairs(file.tensors) do
    local n, head = 1, text(t[1]) .. u32(#t[2])
    for _, size in ipairs(t[2]) do n, head = n * math.abs(size), head .. u64(size) end
    local bytes = math.ceil(n / (BLOCK[t[3]] or 1)) * (ITEM[t[3]] or 4)
    parts[#parts + 1] = head .. u32(t[3]) .. u64(t[4] or offset)
    if bytes > 65536 then bytes = 64 end
    data[#data + 1] = ("\0\60"):rep(bytes / 2) .. ("\0"):rep(-bytes % 32)
    offset = offset + #data[#data]
  end
  local head = table.concat(parts)
  return head .. ("\0"):rep(-#head % 32) .. table.concat(data)
end

local tokens = { kind = STRING, "<unk>", "<s>", "\196\160", "a", "b", "ab", "\226\150\129", "<0x41>" }
local function shared(kind, arch, extra)
  local list = { { "general.architecture", STRING, arch }, { arch .. ".block_count", U32, 1 },
    { arch .. ".embedding_length", U32, 4 }, { arch .. ".attention.head_count", U32, 2 },
    { arch .. ".context_length", U32, 16 }, { arch .. ".feed_forward_length", U32, 8 },
    { "tokenizer.ggml.model", STRING, kind }, { "tokenizer.ggml.tokens", ARRAY, tokens },
    { "tokenizer.ggml.bos_token_id", U32, 1 }, { "tokenizer.ggml.eos_token_id", U32, 2 },
    { "tokenizer.ggml.token_type", ARRAY, { kind = I32, 2, 3, 1, 1, 1, 4, 1, 6 } } }
  for _, f in ipairs(extra) do list[#list + 1] = f end
  return list
end

local function bias_of(list)
  local out = {}
  for _, name in ipairs(list) do out[#out + 1] = { name[1] .. ".weight", name[2], name[3] or 0 } end
  return out
end

local llama = { fields = shared("llama", "llama", { { "llama.attention.layer_norm_rms_epsilon", F32, 1e-5 },
  { "llama.rope.freq_base", F32, 1e4 }, { "llama.attention.head_count_kv", U32, 1 }, { "general.alignment", U32, 32 },
  { "tokenizer.ggml.scores", ARRAY, { kind = F32, 0, 0, 0, -1, -2, -3, -4, -5 } },
  { "tokenizer.ggml.unknown_token_id", U32, 0 }, { "tokenizer.ggml.add_space_prefix", BOOL, 1 } }),
  tensors = bias_of { { "token_embd", { 4, 8 } }, { "output_norm", { 4 } }, { "output", { 4, 8 } },
    { "blk.0.attn_norm", { 4 } }, { "blk.0.attn_q", { 4, 4 } }, { "blk.0.attn_k", { 4, 2 } }, { "blk.0.attn_v", { 4,
      2 } },
    { "blk.0.attn_output", { 4, 4 } }, { "blk.0.ffn_norm", { 4 } }, { "blk.0.ffn_gate", { 4, 8 } },
    { "blk.0.ffn_up", { 4, 8 } }, { "blk.0.ffn_down", { 8, 4 } } } }
local gpt2 = { fields = shared("gpt2", "gpt2", { { "tokenizer.ggml.unknown_token_id", U32, 0 },
  { "gpt2.attention.layer_norm_epsilon", F32, 1e-5 },
  { "tokenizer.ggml.merges", ARRAY, { kind = STRING, "a b" } }, { "tokenizer.ggml.pre", STRING, "gpt-2" } }),
  tensors = bias_of { { "token_embd", { 4, 8 } }, { "position_embd", { 4, 16 } }, { "output_norm", { 4 } },
    { "blk.0.ln_1", { 4 } }, { "blk.0.attn_qkv", { 4, 12 } }, { "blk.0.attn_output", { 4, 4 } }, { "blk.0.ln_2",
      { 4 } },
    { "blk.0.ffn_up", { 4, 16 } }, { "blk.0.ffn_down", { 16, 4 } } } }
do -- GPT-2 has biases, and other names of its norms
  local more = {}
  for _, t in ipairs(gpt2.tensors) do
    t[1] = t[1]:gsub("ln_1", "attn_norm"):gsub("ln_2", "ffn_norm")
    if t[1] ~= "token_embd.weight" and t[1] ~= "position_embd.weight" then
      more[#more + 1] = { t[1]:gsub("weight$", "bias"), { t[2][2] or t[2][1] }, 0 }
    end
  end
  for _, t in ipairs(more) do gpt2.tensors[#gpt2.tensors + 1] = t end
end
local quantized = { fields = { { "general.architecture", STRING, "x" } }, tensors = { { "q", { 32, 2 }, 8 },
  { "p", { 64 }, 2 }, { "h", { 3 }, 1 }, { "b", { 2, 2 }, 30 }, { "f", { 1, 2, 1, 2 }, 0 } } }
local seeds = { llama, llama, gpt2, gpt2, quantized }

local odd = { 0, 1, 2, 3, 4, 5, 7, 8, 12, 31, 33, 64, 100, 65536, 2 ^ 31 - 1, 2 ^ 31, 2 ^ 32 - 1, 2 ^ 40, 2 ^ 53, -1,
  -2 ^ 63,
  1 / 0, 0 / 0, -0.5, 1e-30 }
local names = { "llama", "gpt2", "qwen2", "bpe", "linear", "", "\255", "a\0b", "llama-bpe", "default", "yarn", "x" }

local function changed_value(c, f)
  local kind, v = f[2], f[3]
  if c:one_in(5) then kind = c:int(0, 13) end
  if kind == ARRAY then
    local out = { kind = type(v) == "table" and v.kind or U8 }
    if type(v) == "table" then
      for i, item in ipairs(v) do out[i] = item end
    end
    local n = c:int(6)
    if n == 1 then out.n = c:pick({ 0, 1, 7, 9, 2 ^ 31, 2 ^ 60, -1 })
    elseif n == 2 then out.kind = c:int(0, 13)
    elseif n == 3 then table.remove(out)
    elseif n == 4 and #out > 0 then out[c:int(#out)] = out.kind == STRING and c:pick(names) or c:pick(odd)
    elseif #out > 0 then out[#out + 1] = out[c:int(#out)]
    end
    if (out.kind == ARRAY or ctypes[out.kind] == nil) and out.kind ~= STRING then return kind, { kind = out.kind } end
    return kind, out
  end
  if kind ~= STRING and not ctypes[kind] then kind = U8 end
  if kind == STRING then return kind, c:pick(names) end
  return kind, c:pick(odd)
end

local M = {}

function M.make(c)
  local seed = c:pick(seeds)
  local file = { fields = { unpack(seed.fields) }, tensors = { unpack(seed.tensors) } }
  local by_bytes = c:one_in(4)
  for _ = 1, by_bytes and 0 or c:int(1, 3) do
    local n = c:int(10)
    if n <= 5 then
      local k = c:int(#file.fields)
      local f = file.fields[k]
      if f and c:one_in(9) then table.remove(file.fields, k)
      elseif f then
        local ok, kind, v = pcall(changed_value, c, f)
        if ok then file.fields[k] = { c:one_in(15) and c:pick(names) or f[1], kind, v } end
      end
    elseif n <= 9 then
      local k = c:int(#file.tensors)
      local t = file.tensors[k]
      if t and c:one_in(9) then table.remove(file.tensors, k)
      elseif t then
        local shape = { unpack(t[2]) }
        shape[c:int(#shape)] = c:pick(odd)
        for i, size in ipairs(shape) do
          if size ~= size or size ~= math.floor(size) or math.abs(size) > 2 ^ 62 then shape[i] = 2 ^ 62 end
        end
        file.tensors[k] = { c:one_in(15) and file.tensors[1][1] or t[1], c:one_in(2) and shape or t[2],
          c:one_in(3) and c:pick({ 0, 1, 2, 3, 8, 30, 31, 12 }) or t[3], c:one_in(10) and c:pick({ 0, 1, 32,
            2 ^ 40 }) or nil }
      end
    else
      file.version, file.count = c:one_in(2) and c:int(0, 5) or nil, c:one_in(2) and c:int(0, 30) or nil
    end
  end
  local bytes = write(file)
  for _ = 1, by_bytes and c:int(1, 3) or 0 do bytes = damage.bytes(c, bytes) end
  return bytes
end

function M.read(bytes, running, path)
  local at = path .. ".gguf"
  local f = assert(io.open(at, "wb"))
  f:write(bytes)
  f:close()
  local ok, err = pcall(function()
    moth.gguf.load(at)
    local model, tokenizer = moth.models.load(at)
    running()
    if tokenizer then tokenizer:decode(tokenizer:encode("ab aab b", true)) end
    moth.no_grad(function() model(moth.ones({ 1, 2 }, { dtype = moth.int64 })) end)
  end)
  os.remove(at)
  if not ok then error(err, 0) end
  return "ran"
end

return M
