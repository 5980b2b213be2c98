--- Weights of checkpoints in 8 bits (and NVFP4's 4) with their scales, as the floats that they stand for: DeepSeek's
-- and Qwen's fp8 (weight_scale_inv of blocks), compressed-tensors', FBGEMM's and ModelOpt's (weight_scale of a tensor,
-- its rows, groups of columns or blocks).
local moth = require "moth"
local check = require "moth.utils.check"
local each = require "moth.each"

local M = {}

-- Why the scales alone do not tell what the weights of a quantization_config are; nil: they do.
local methods = {
  mxfp4 = function() end,
  fp8 = function() end,
  fbgemm_fp8 = function() end,
  modelopt = function(c)
    local kind = c.quant_algo or type(c.quantization) == "table" and c.quantization.quant_algo
    if kind ~= "FP8" then return ("quant_algo = %s"):format(tostring(kind)) end
  end,
  ["compressed-tensors"] = function(c)
    local known = { ["float-quantized"] = true, ["naive-quantized"] = true, ["int-quantized"] = true,
      ["nvfp4-pack-quantized"] = true }
    if c.format and not known[c.format] then return ("format = %s"):format(tostring(c.format)) end
    for _, group in each(type(c.config_groups) == "table" and c.config_groups or {}) do
      local w = type(group) == "table" and group.weights or {}
      if w.symmetric == false then return "weights with zero points" end
      if group.format and not known[group.format] then return ("format = %s"):format(tostring(group.format)) end
    end
  end,
}

local function fail(where, name, ...)
  check.fail("[%s] %s: %s", where, name, (...):format(select(2, ...)))
end

-- A scale (…, R, C) stretched to a weight (…, n, k): of `block` rows and columns each, or of as many as divide them.
local function stretched(where, name, scale, shape, block)
  local n = #shape
  if scale:numel() == 1 then return scale:reshape(1) end
  if scale:dim() == n - 1 then scale = scale:unsqueeze(-1) end -- one for each row
  local function wrong()
    fail(where, name, "a scale of %s does not go with a weight of [%s]", tostring(scale:size()),
      table.concat(shape, ", "))
  end
  if scale:dim() ~= n then wrong() end
  for d = 1, n do
    local have, want = scale:size(d), shape[d]
    if have ~= want and have ~= 1 then
      local by = d > n - 2 and block and block[d - (n - 2)] or want / have
      if d <= n - 2 or by % 1 ~= 0 or math.ceil(want / by) ~= have then wrong() end
      scale = scale:repeat_interleave(by, d):narrow(d, 1, want)
    end
  end
  return scale
end

local E2M1 = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6 }

-- NVFP4: bytes (…, k / 2) of two elements each, the lower half first.
local function unpacked(bytes)
  local table_of = moth.tensor(E2M1, { dtype = moth.float32 })
  local codes = bytes:to(moth.int64)
  local both = moth.stack({ codes:remainder(16), codes:floor_divide(16) }, -1) + 1
  local shape = {}
  for d = 1, bytes:dim() do shape[d] = bytes:size(d) end
  shape[#shape] = 2 * shape[#shape]
  return table_of:index_select(1, both:reshape(-1)):reshape(shape)
end

-- gpt-oss: codes (E, n, groups, 16), two a byte, and exponents (E, n, groups), as rows (E, n, bytes) of GGUF's blocks
-- MXFP4, of which a byte holds elements i and i + 16.
local function blocks_of(codes, exponents)
  local E, n, groups = codes:size(1), codes:size(2), codes:size(3)
  local list = {}
  for e = 1, E do
    local two = codes:select(1, e):reshape(n * groups, 16)
    local all = moth.stack({ two:bitwise_and(15), two:bitwise_right_shift(4) }, 3):reshape(n * groups, 32)
    local bytes = all:narrow(2, 1, 16):bitwise_or(all:narrow(2, 17, 16):bitwise_left_shift(4))
    list[e] = moth.cat({ exponents:select(1, e):reshape(n * groups, 1), bytes }, 2):reshape(n, groups * 17)
  end
  return moth.stack(list, 1)
end

-- Of activations, which are not rounded here.
local inert = { "%.input_scale$", "%.activation_scale$", "%.input_global_scale$", "%.weight_shape$", "%.[kv]_scale$",
  "%.output_scale$", "%.input_zero_point$" }

--- The weights {name = tensor} of a config.json with a quantization_config, as floats of the checkpoint's dtype; the
-- same table where there is none. Takes quantization_config out of the config. An error names what is not known. Gives
-- the GGUF types of those that stay in blocks, too: { name = type }.
function M.read(config, sd, where)
  local q = config.quantization_config or config.compression_config
  if not q then return sd, {} end
  local method = q.quant_method or q.producer and "modelopt"
  local known = methods[tostring(method)]
  local why = not known and "" or known(q)
  if why then
    check.fail("[%s] config.json: weights quantized by %s%s are not supported (fp8, fbgemm_fp8, mxfp4, modelopt's FP8 \z
      and compressed-tensors of 8 bits are); take the plain ones, or a GGUF file", where, tostring(method),
      why ~= "" and " with " .. why or "")
  end
  local dtype = config.dtype or config.torch_dtype
  dtype = (dtype == "float32" or dtype == "float16") and moth[dtype] or moth.bfloat16
  local out, types = {}, {}
  if method == "mxfp4" then
    for name, t in each(sd) do
      local base = name:match "^(.*)_blocks$"
      if base then
        local exponents = sd[base .. "_scales"]
        if not exponents or t:dim() ~= 4 or t:size(4) ~= 16 then
          fail(where, name, "expected bytes (experts, rows, groups, 16), and %s_scales beside them", base)
        end
        out[base], types[base] = blocks_of(t, exponents), "MXFP4"
      elseif not name:find "_scales$" then
        out[name] = t
      end
    end
    config.quantization_config, config.compression_config = nil, nil
    return out, types
  end
  for name, t in each(sd) do
    local base = name:match "^(.*weight)_scale$" or name:match "^(.*weight)_scale_inv$"
      or name:match "^(.*weight)_packed$"
    local is_inert = name:find "weight_global_scale$" ~= nil
    for _, pattern in ipairs(inert) do is_inert = is_inert or name:find(pattern) ~= nil end
    if name:find "weight_zero_point$" and t:ne(0):any():item() then
      fail(where, name, "zero points are not supported")
    end
    if not base and not is_inert and not name:find "weight_zero_point$" then out[name] = out[name] or t end
  end
  for name, t in each(sd) do
    local base = name:match "^(.*weight)_scale$" or name:match "^(.*weight)_scale_inv$"
    if base then
      local scale, w, packed = t:to(moth.float32), sd[base], sd[base .. "_packed"]
      if packed then
        w = unpacked(packed)
        local all = sd[base .. "_global_scale"]
        if not all then fail(where, name, "there is no %s_global_scale", base) end
        scale = scale / all:to(moth.float32)
      end
      if not w then fail(where, name, "there is no weight %s beside it", base) end
      local shape = {}
      for d = 1, w:dim() do shape[d] = w:size(d) end
      out[base] = (w:to(moth.float32) * stretched(where, name, scale, shape, q.weight_block_size)):to(dtype)
    end
  end
  config.quantization_config, config.compression_config = nil, nil
  return out, types
end

return M
