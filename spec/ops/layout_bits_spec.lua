-- The memory layout of its operands does not change the bits of a pointwise op: every record, in all its float dtypes
-- and on all levels of the CPU, with operands that are expanded, strided, transposed or 0-dim, against the same numbers
-- row-major.
local S = require "ops.support"
local B = require "moth_lua"
local ops = B.ops
local count = S.counter("layout bits")

local ROWS, COLUMNS = 7, 53 -- whole vectors and a rest, of every level

local function numbers(n, positive)
  local out = {}
  for i = 1, n do out[i] = positive and S.uniform() + 0.1 or S.uniform() * 4 - 2 end
  return out
end

-- Tensors of (ROWS, COLUMNS) in a layout, or 0-dim.
local layouts = {
  one = function(make) return ops.expand(make({ 1, 1 }), { ROWS, COLUMNS }) end,
  ["0-dim"] = function(make) return make({}) end,
  row = function(make) return ops.expand(make({ 1, COLUMNS }), { ROWS, COLUMNS }) end,
  column = function(make) return ops.expand(make({ ROWS, 1 }), { ROWS, COLUMNS }) end,
  strided = function(make) return ops.slice(make({ ROWS, 2 * COLUMNS }), 2, 0, 2 * COLUMNS, 2) end,
  transposed = function(make) return ops.transpose(make({ COLUMNS, ROWS }), 1, 2) end,
  offset = function(make) return ops.narrow(make({ ROWS + 1, COLUMNS }), 1, 2, ROWS) end,
}
local names = { "one", "0-dim", "row", "column", "strided", "transposed", "offset" }

local function dense(t) return ops.clone(ops.expand(t, { ROWS, COLUMNS })) end

-- The places of the tensors among the arguments, and all layouts: of one operand, of two, of all.
local function assignments(places)
  local out = {}
  for _, name in ipairs(names) do
    for i, p in ipairs(places) do
      out[#out + 1] = { [p] = name }
      for k = i + 1, #places do
        out[#out + 1] = { [p] = name, [places[k]] = name }
        out[#out + 1] = { [p] = name, [places[k]] = "one" }
      end
    end
    if #places > 2 then
      local all = {}
      for _, p in ipairs(places) do all[p] = name end
      out[#out + 1] = all
    end
  end
  return out
end

local function same_bits(got, want, level)
  if S.bytes(ops.contiguous(got)) == S.bytes(want) then return end
  local a, b = S.values(got), S.values(want)
  for i = 1, #a do
    if a[i] ~= b[i] and (a[i] == a[i] or b[i] == b[i]) then
      error(("%s: element %d is %.17g, row-major %.17g"):format(level, i, a[i], b[i]), 0)
    end
  end
end

local function compare(op, base, places, dtype, positive, layout)
  local given, plain = { n = base.n }, { n = base.n }
  for i = 1, base.n do given[i], plain[i] = base[i], base[i] end
  for _, p in ipairs(places) do
    local mask = op.args[p].name == op.cond
    local function make(shape)
      local data = numbers(S.product(shape), positive)
      if mask then for i, x in ipairs(data) do data[i] = x > (positive and 0.6 or 0) and 1 or 0 end end
      return S.make(shape, mask and "bool" or dtype, data)
    end
    given[p] = layout[p] and layouts[layout[p]](make) or make({ ROWS, COLUMNS })
    plain[p] = dense(given[p])
  end
  local whole = false
  for _, p in ipairs(places) do whole = whole or B.dim(given[p]) == 2 end
  if not whole then return end
  local best = B.cpu_level()
  for _, level in ipairs(S.device == "cpu" and { "generic", "avx2", best } or { best }) do
    if pcall(B.cpu_level, level) then
      local ok, got = pcall(ops[op.name], unpack(given, 1, given.n))
      local want = ok and ops[op.name](unpack(plain, 1, plain.n))
      B.cpu_level(best)
      if not ok then error(got, 0) end
      same_bits(got, want, level)
    end
  end
end

local function describe_layout(op, layout)
  local text = {}
  for i, a in ipairs(op.args) do if layout[i] then text[#text + 1] = a.name .. " " .. layout[i] end end
  return table.concat(text, ", ")
end

describe("bits of pointwise ops #noasan", function() -- of -O1 a loop and its copy by hand differ
  for _, op in ipairs(S.selected()) do
    if op.kind == "pointwise" then
      it(S.title(op), function()
        local base = S.evaluate(op.samples[1])
        local places, params = {}, {}
        for i, a in ipairs(op.args) do
          if a.type ~= "SCALAR" then places[#places + 1] = i
          elseif type(base[i]) == "number" or a.default and tonumber(a.default) then params[#params + 1] = i end
        end
        base.n = math.max(base.n, #op.args)
        for i = 1, base.n do if S.is_options(base[i]) then base[i] = nil end end
        -- numbers whose products round
        for _, i in ipairs(params) do
          if op.name ~= "polygamma" then base[i] = (base[i] or tonumber(op.args[i].default)) * 1.1 + 0.0137 end
        end
        for _, dtype in ipairs({ "float32", "float64", "float16", "bfloat16" }) do
          if (op.dtypes or "float"):find("float", 1, true) then
            for _, positive in ipairs({ true, false }) do
              for _, layout in ipairs(assignments(places)) do
                S.reseed(S.seed)
                local where = ("%s %s %s%s"):format(op.name, dtype, describe_layout(op, layout),
                  positive and " positive" or "")
                count.case(where, compare, op, base, places, dtype, positive, layout)
              end
            end
          end
        end
        count.check()
      end)
    end
  end

  it("ran", function()
    io.write(("  %d cases of layouts with the same bits\n"):format(count.total))
    assert.is_true(count.total > 0 or #S.selected() < #S.records) -- of an op that is not pointwise: none
  end)
end)
