-- vmap of every op record against a loop: of its samples three sets of data, all operands batched, each one alone, and
-- one vmap in another.
local S = require "ops.support"
local B = require "moth_lua"
local moth = require "moth"
local ops, vmap = B.ops, moth.func.vmap

local SIZE = 3
local cases = S.counter("vmap")

local function call(name, args) return ops[name](unpack(args, 1, args.n)) end
local function pack(...) return { n = select("#", ...), ... } end

-- The sample three times, with other data.
local function sets(text, seed)
  local list = {}
  for k = 1, SIZE do list[k] = S.evaluate(text, { seed = seed + 100 * k }) end
  return list
end

-- The tensors of a sample as paths: { argument[, place in a list] }.
local function tensors(args)
  local list = {}
  for i = 1, args.n do
    local v = args[i]
    if B.is_tensor(v) then
      list[#list + 1] = { i }
    elseif type(v) == "table" and not S.is_options(v) then
      for j = 1, #v do if B.is_tensor(v[j]) then list[#list + 1] = { i, j } end end
    end
  end
  return list
end

local function get(args, path) return path[2] and args[path[1]][path[2]] or args[path[1]] end

-- args with other tensors at some paths.
local function with(args, paths, values)
  local out = { n = args.n }
  for i = 1, args.n do
    out[i] = args[i]
    if type(args[i]) == "table" and not B.is_tensor(args[i]) and #args[i] > 0 then
      out[i] = {}
      for j = 1, #args[i] do out[i][j] = args[i][j] end
    end
  end
  for k, path in ipairs(paths) do
    if path[2] then out[path[1]][path[2]] = values[k] else out[path[1]] = values[k] end
  end
  return out
end

-- Calls the op on copies of what it writes to; for ops without results, gives what they have written.
local function run(op, name, args)
  local writes = op.returns_self or name ~= op.name
  local copy = { n = args.n }
  for i = 1, args.n do
    local v, a = args[i], op.args[i]
    if a and (a.mutated or (i == 1 and writes)) and v ~= nil then
      if B.is_tensor(v) then
        v = ops.clone(v)
      else
        local list = {}
        for j = 1, #v do list[j] = ops.clone(v[j]) end
        v = list
      end
    end
    copy[i] = v
  end
  local results = pack(call(name, copy))
  if op.nresults == 0 then return unpack(copy[1]) end
  return unpack(results, 1, results.n)
end

local function compare(got, want)
  if S.dtype_of(got) ~= S.dtype_of(want) then
    error(("dtype %s, the loop gives %s"):format(S.dtype_of(got), S.dtype_of(want)), 0)
  end
  if tostring(got:size()) ~= tostring(want:size()) then
    error(("shape %s, the loop gives %s"):format(tostring(got:size()), tostring(want:size())), 0)
  end
  local close = S.dtype_of(want) == "float32" and 1e-4 or 1e-9
  got, want = ops.to(got, moth.float64), ops.to(want, moth.float64)
  if not moth.allclose(got, want, { rtol = close, atol = close, equal_nan = true }) then
    error("values differ from the loop's", 0)
  end
end

-- One set of batched operands, at one level, for the first `size` sets of data.
local function check(op, name, list, batched, size)
  size = size or SIZE
  local rows = {}
  for k = 1, size do
    local values = {}
    for i, path in ipairs(batched) do values[i] = get(list[k], path) end
    rows[k] = pack(run(op, name, with(list[1], batched, values)))
  end
  local stacked, dims = {}, {}
  for i, path in ipairs(batched) do
    local each = {}
    for k = 1, size do each[k] = get(list[k], path) end
    stacked[i], dims[i] = ops.stack(each, i % 2 == 1 and 1 or -1), i % 2 == 1 and 1 or -1
  end
  local results = pack(vmap(function(...)
    return run(op, name, with(list[1], batched, { ... }))
  end, dims)(unpack(stacked)))
  for r = 1, results.n do
    local want = {}
    for k = 1, size do want[k] = rows[k][r] end
    compare(results[r], ops.stack(want))
  end
end

-- A batch of none: results of none, of the shapes and dtypes that those of one have.
local function check_empty(op, name, list, batched)
  local rows, stacked = pack(run(op, name, list[1])), {}
  for i, path in ipairs(batched) do
    local one = ops.unsqueeze(get(list[1], path), 1)
    stacked[i] = ops.clone(ops.narrow(one, 1, 1, 0))
  end
  local results = pack(vmap(function(...) return run(op, name, with(list[1], batched, { ... })) end)(unpack(stacked)))
  for r = 1, results.n do
    local size = B.size(rows[r])
    table.insert(size, 1, 0)
    if not S.same_shape(B.size(results[r]), size) or S.dtype_of(results[r]) ~= S.dtype_of(rows[r]) then
      local want = S.dtype_of(rows[r]) .. " " .. S.show(size)
      error(("an empty batch gives %s, expected %s"):format(B.format(results[r]), want), 0)
    end
  end
end

-- vmap in vmap: the first operand by the outer one, the others by the inner one.
local function check_nested(op, name, list, paths)
  local outer, inner = { paths[1] }, {}
  for i = 2, #paths do inner[#inner + 1] = paths[i] end
  local function stack(path)
    local each = {}
    for k = 1, SIZE do each[k] = get(list[k], path) end
    return ops.stack(each)
  end
  local a, b = stack(outer[1]), {}
  for i, path in ipairs(inner) do b[i] = stack(path) end
  local got = pack(vmap(function(x)
    return vmap(function(...) return run(op, name, with(with(list[1], outer, { x }), inner, { ... })) end)(unpack(b))
  end)(a))
  for r = 1, got.n do
    local rows = {}
    for k = 1, SIZE do
      local row = {}
      for j = 1, SIZE do
        local values = {}
        for i, path in ipairs(inner) do values[i] = get(list[j], path) end
        row[j] = (select(r, run(op, name, with(with(list[1], outer, { get(list[k], outer[1]) }), inner, values))))
      end
      rows[k] = ops.stack(row)
    end
    compare(got[r], ops.stack(rows))
  end
end

-- What is written to must be batched as all others are.
local function writes(op, name)
  local yes = name ~= op.name or op.returns_self
  for _, a in ipairs(op.args) do yes = yes or a.mutated end
  return yes
end

local function can_stack(list, paths)
  for _, path in ipairs(paths) do
    local first = get(list[1], path)
    for k = 2, SIZE do
      local other = get(list[k], path)
      if tostring(other:size()) ~= tostring(first:size()) then return false end
    end
  end
  return true
end

-- What is left out: results that random numbers, uninitialised memory or sizes that depend on elements decide.
local function left_out(op)
  return op.draws or op.name:find("^empty") or op.shape == "dynamic" or op.factory
end

describe("vmap", function()
  for _, op in ipairs(S.selected()) do
    if not left_out(op) then
      it(S.title(op), function()
        for i, text in ipairs(op.samples) do
          local names = { op.name }
          if op.inplace then names[2] = op.name .. "_" end
          for _, name in ipairs(names) do
            local ok, list = pcall(sets, text, S.seed + i)
            local paths = ok and tensors(list[1]) or {}
            local runs = #paths > 0 and can_stack(list, paths)
            for k = 1, runs and SIZE or 0 do runs = runs and pcall(run, op, name, list[k]) end
            if runs then
              local where = ("%s sample %d"):format(name, i)
              cases.case(where .. ", all batched", check, op, name, list, paths)
              if i == 1 then
                cases.case(where .. ", a batch of one", check, op, name, list, paths, 1)
                cases.case(where .. ", a batch of none", check_empty, op, name, list, paths)
              end
              for k = 1, #paths > 1 and #paths or 0 do
                local path = paths[k]
                local a = op.args[path[1]]
                if not writes(op, name) then
                  cases.case(("%s, %s alone"):format(where, a.name), check, op, name, list, { path })
                end
              end
              if #paths > 1 and not writes(op, name) then
                cases.case(where .. ", nested", check_nested, op, name, list, paths)
              end
            end
          end
        end
        cases.check()
      end)
    end
  end
end)
