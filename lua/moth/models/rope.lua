--- Rotary positions of models.Llama: the frequencies by which pairs of coordinates turn, and how contexts longer than
-- those of the training are made: rope_scaling of config.json.
local moth = require "moth"
local check = require "moth.utils.check"
local each = require "moth.each"

local M = {}

local scalings = {}

--- All of them by one factor.
function scalings.linear(f, _, s) return f / s.factor end

--- Llama 3's: long waves are stretched by the factor, short ones not, those between in proportion.
function scalings.llama3(f, _, s)
  local wave, old = 2 * math.pi / f, s.original_max_position_embeddings
  local long, short = old / s.low_freq_factor, old / s.high_freq_factor
  if wave > long then return f / s.factor end
  if wave <= short then return f end
  local share = (old / wave - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
  return (1 - share) * f / s.factor + share * f
end

--- YaRN (Peng et al. 2023): by how often a pair turns over the trained length, between two bounds in proportion.
function scalings.yarn(f, i, s, c, dim)
  local old = s.original_max_position_embeddings or c.max_position_embeddings
  local function pair_of(turns) return dim * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(c.rope_theta)) end
  local low, high = pair_of(s.beta_fast or 32), pair_of(s.beta_slow or 1)
  if s.truncate ~= false then low, high = math.floor(low), math.ceil(high) end
  low, high = math.max(low, 0), math.min(high, dim - 1)
  if low == high then high = high + 0.001 end
  local share = math.min(1, math.max(0, (i - low) / (high - low)))
  return f / s.factor * share + f * (1 - share)
end

--- Phi-3's: a factor of each pair; those for texts up to the original length, which are the most that is taken.
function scalings.longrope(f, i, s) return f / s.short_factor[i + 1] end

--- Within max_position_embeddings, which are the most that is taken, nothing is scaled.
function scalings.dynamic(f) return f end
scalings.default = scalings.dynamic

local function kind_of(c)
  local s = c.rope_scaling or {}
  local kind = s.rope_type or s.type or "default"
  if not scalings[kind] then
    check.fail("[models.Llama] rope_scaling '%s' is not known; there are linear, llama3, yarn, dynamic and longrope",
      tostring(kind))
  end
  return kind, s
end

-- The fields that a kind needs; those that any may have.
local needs = { linear = { "factor" }, yarn = { "factor" }, dynamic = {}, default = {}, longrope = {},
  llama3 = { "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings" } }
local may = { "factor", "beta_fast", "beta_slow", "attention_factor", "original_max_position_embeddings" }

-- All fields that are computed with; those of other kinds are left alone, as transformers does.
local known = {}
for name in ("rope_type type rope_theta partial_rotary_factor factor beta_fast beta_slow attention_factor mscale \z
  mscale_all_dim truncate low_freq_factor high_freq_factor original_max_position_embeddings short_factor long_factor \z
  finetuned"):gmatch "%S+" do known[name] = true end

local function positive(name, v)
  if type(v) ~= "number" or not (v > 0 and v < math.huge) then
    check.fail("[models.Llama] %s must be a number above 0, got %s", name,
      type(v) == "string" and ("the string '%s'"):format(v) or tostring(v))
  end
end

--- Raises where a config's rope_theta and rope_scaling are none that can be computed.
function M.check(c)
  positive("rope_theta", c.rope_theta)
  if c.local_rope_theta then positive("local_rope_theta", c.local_rope_theta) end
  local turned = M.size(c)
  if turned < 2 or turned > c.head_dim then
    check.fail("[models.Llama] partial_rotary_factor = %g rotates %d of the %d coordinates of a head; 2 are the least",
      c.partial_rotary_factor, turned, c.head_dim)
  end
  if math.floor(c.head_dim * c.partial_rotary_factor + 1e-6) % 2 == 1 then
    check.fail("[models.Llama] partial_rotary_factor = %g rotates %d of the %d coordinates of a head; expected an \z
      even number", c.partial_rotary_factor, turned + 1, c.head_dim)
  end
  local kind, s = kind_of(c)
  for name in each(s) do
    if not known[name] then
      check.fail("[models.Llama] rope_scaling.%s is not supported (of '%s')", tostring(name), kind)
    end
  end
  for _, name in ipairs(needs[kind]) do positive(("rope_scaling.%s of '%s'"):format(name, kind), s[name]) end
  for _, name in ipairs(may) do
    if s[name] ~= nil then positive("rope_scaling." .. name, s[name]) end
  end
  if kind == "llama3" and s.low_freq_factor == s.high_freq_factor then
    check.fail("[models.Llama] rope_scaling.low_freq_factor and high_freq_factor must differ, both are %g",
      s.low_freq_factor)
  end
  if kind ~= "longrope" then return end
  positive("original_max_position_embeddings of 'longrope'", c.original_max_position_embeddings)
  local list, n = s.short_factor, M.size(c) / 2
  if type(list) ~= "table" or #list ~= n then
    check.fail("[models.Llama] rope_scaling.short_factor must be a list of %d numbers, got %s", n,
      type(list) == "table" and #list or tostring(list))
  end
  for i, v in ipairs(list) do positive(("rope_scaling.short_factor[%d]"):format(i), v) end
end

--- How many coordinates of a head are rotated.
function M.size(c)
  local dim = math.floor(c.head_dim * c.partial_rotary_factor + 1e-6)
  return dim - dim % 2
end

--- The frequencies, (rotated coordinates / 2), float32; c: a model's config. Those of rope_factors divide them, as GGUF
-- has them; is_local: of layers with a window, where they have frequencies of their own (Gemma 3).
function M.frequencies(c, is_local)
  local dim, list = M.size(c), {}
  local kind, s = kind_of(c)
  local theta = is_local and c.local_rope_theta or c.rope_theta
  for i = 0, dim / 2 - 1 do
    local f = theta ^ (-2 * i / dim)
    if is_local and c.local_rope_theta then
      list[i + 1] = f
    elseif c.rope_factors then
      list[i + 1] = f / c.rope_factors[i + 1]
    else
      list[i + 1] = scalings[kind](f, i, s, c, dim)
    end
  end
  return moth.tensor(list, { dtype = moth.float32 })
end

--- YaRN's own factor of cosines and sines, for contexts that are so many times as long.
function M.mscale(factor, m) return factor <= 1 and 1 or 0.1 * (m or 1) * math.log(factor) + 1 end

--- By what cosines and sines are multiplied.
function M.attention_factor(c)
  local kind, s = kind_of(c)
  local of = M.mscale
  if s.attention_factor then return s.attention_factor end
  if kind == "yarn" then
    local one, all = s.mscale, s.mscale_all_dim
    if one and all and one ~= 0 and all ~= 0 then return of(s.factor, one) / of(s.factor, all) end
    return of(s.factor)
  elseif kind == "longrope" then
    local old = c.original_max_position_embeddings
    local factor = s.factor or c.max_position_embeddings / old
    return factor <= 1 and 1 or math.sqrt(1 + math.log(factor) / math.log(old))
  end
  return 1
end

--- The most tokens that a model can look at.
function M.longest(c)
  return kind_of(c) == "longrope" and math.min(c.original_max_position_embeddings, c.max_position_embeddings)
    or c.max_position_embeddings
end

return M
