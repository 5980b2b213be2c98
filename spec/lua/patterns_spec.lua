-- Shape rules as patterns, run in Lua (lua/moth/library/patterns.lua): those of the op table say what the C rules say
-- that the build makes of them, and refuse what these refuse, in the same words.
local moth = require "moth"
local B = require "moth_lua"
local S = require "ops.support"
local patterns = require "moth.library.patterns"

local function text_of(sizes, dtype)
  local parts = {} -- with a wrong pattern, a tensor named A may stand for a size
  for k, size in ipairs(sizes) do parts[k] = type(size) == "number" and size or type(size) end
  return ("%s [%s]"):format(dtype, table.concat(parts, ", "))
end

-- The rule of a record as one of moth.library, or nil; with other patterns of results, if they are given.
local function rule_of(record, out)
  local by_kind = record.kind == "pointwise" or record.kind == "reduce" or record.kind == "scan"
  if not record.out or record.shape or by_kind then return end
  local op = { name = record.name, args = record.args, index = {}, nresults = record.nresults, kind = record.kind,
    dims = record.dims, let = record.let, out = out or record.out, check = record.check }
  for _, a in ipairs(record.args) do op.index[a.name] = a end
  return patterns.rule(op)
end

-- What the rule says of these arguments; or its message.
local function said(record, rule, args)
  local given = S.bind(record, args)
  local list = {}
  for i, a in ipairs(record.args) do list[i] = given[a.name] end
  local results = { pcall(rule, unpack(list, 1, #record.args)) }
  if not results[1] then return nil, tostring(results[2]) end
  local first
  for _, a in ipairs(record.args) do first = first or moth.is_tensor(given[a.name]) and given[a.name] end
  local out = {}
  for i = 1, record.nresults do
    local dtype = results[i + 1].dtype or first and S.dtype_of(first) or given.dtype or moth.get_default_dtype().name
    out[i] = text_of(results[i + 1], type(dtype) == "string" and dtype or dtype.name)
  end
  return table.concat(out, "; ")
end

local function done(record, args)
  local results = { pcall(B.ops[record.name], unpack(args, 1, args.n)) }
  if not results[1] then return nil, tostring(results[2]) end
  local out = {}
  for i = 1, record.nresults do out[i] = text_of(results[i + 1]:size(), S.dtype_of(results[i + 1])) end
  return table.concat(out, "; ")
end

-- A message without the place, the op and the list of arguments behind it.
-- Which of two arguments a size comes from is decided at the call where one may be missing; the build names one.
local function bare(message, record)
  for _, a in ipairs(record and record.dims and record.args or {}) do
    if a.optional and record.dims[a.name] then message = message:gsub("; [%w*]+ = %-?%d+ as in [%w_]+", "") end
  end
  return (message:gsub("^.-%] ", "", 1):gsub("; got [%w_]+: %w+ %[.*$", ""):gsub("; in .*$", ""))
end

describe("patterns in Lua", function()
  it("say what the rules of the op table say", function()
    local wrong, cases = {}, 0
    for _, record in ipairs(S.selected()) do
      local rule = rule_of(record)
      for _, sample in ipairs(rule and record.samples or {}) do
        for _, dtype in ipairs { "float32", "bfloat16", "int64" } do
          local ok, args = pcall(S.evaluate, sample, { dtype = dtype })
          local want, got, err
          if ok then want = done(record, args) end
          if want then
            got, err = said(record, rule, args)
            cases = cases + 1
            if got ~= want then
              wrong[#wrong + 1] = ("%s(%s) %s: %s, the result is %s"):format(record.name, sample, dtype, got or err,
                want)
            end
          end
        end
      end
    end
    assert.is_true(cases > 0)
    assert.equal("", table.concat(wrong, "\n", 1, math.min(#wrong, 20)))
  end)

  -- Without a difference in what a pattern of a result says, it would be found by no sample that it is wrong.
  it("that are wrong are found by the samples", function()
    local same = { -- in the samples, or always
      col2im = "floor_divide%(R, L%)",
      native_qr = "%*D K N", -- R's rows are as many as Q's columns; no sample of 'complete' is tall
      native_ormqr = "%*D P K", -- Q is square in the samples
      ctc_loss_backward = "T S C", -- one target in the samples
    }
    local missed, tried = {}, 0
    for _, record in ipairs(S.selected()) do
      local given = rule_of(record) and {} or nil
      for _, sample in ipairs(given and record.samples or {}) do
        for _, dtype in ipairs { "float32", "bfloat16", "int64" } do
          local ok, args = pcall(S.evaluate, sample, { dtype = dtype })
          local want = ok and done(record, args)
          if want then given[#given + 1] = { args, want } end
        end
      end
      local texts = type(record.out) == "table" and record.out or { record.out }
      local function try(i, wrong)
        local list = { unpack(texts) }
        list[i] = wrong
        local ok, rule = pcall(rule_of, record, list)
        if not ok then return end
        tried = tried + 1
        for _, sample in ipairs(given) do if said(record, rule, sample[1]) ~= sample[2] then return end end
        if not same[record.name] or not wrong:find(same[record.name]) then
          missed[#missed + 1] = ("%s: '%s' for '%s'"):format(record.name, wrong, texts[i])
        end
      end
      for i, text in ipairs(given and texts or {}) do
        local shape, dtype = text:match("^(.-)%s*:%s*(.*)$")
        shape = shape or text
        local tail = dtype and " : " .. dtype or ""
        try(i, shape .. " 1" .. tail)
        if not shape:find "%(" then try(i, shape:gsub("%s*%S+$", "") .. tail) end
        try(i, shape .. " : " .. (dtype == "bool" and "int64" or "bool"))
        for name in shape:gmatch "%f[%w_]%u%f[^%w_]" do -- a size for another
          for other in ("NCHWKLDRIJPQMABEGOSV"):gmatch "." do
            if other ~= name then try(i, shape:gsub("%f[%w_]" .. name .. "%f[^%w_]", other, 1) .. tail) end
          end
        end
      end
    end
    assert.is_true(tried > 0)
    assert.equal("", table.concat(missed, "\n"))
  end)

  it("are told by describe #quick", function()
    local text = moth.ops.describe "native_group_norm"
    assert.matches('dims         self = "N C %* : float", weight = "C : float", bias = "C : float"\n', text)
    assert.matches('out          N C %*, N groups : working%(self%)', text)
    assert.matches('equal%(remainder%(C, groups%), 0%), else "{C} channels are not divisible into', text)
    assert.matches('let          %*O = window_out', (moth.ops.describe "avg_pool2d"))
  end)

  it("refuse what these refuse", function()
    local refused = 0
    for _, record in ipairs(S.selected()) do
      local rule = rule_of(record)
      for _, case in ipairs(rule and record.errors or {}) do
        local ok, args = pcall(S.evaluate, case[1], { dtype = "float32" })
        local _, err, theirs
        if ok then
          _, err = said(record, rule, args)
          _, theirs = done(record, args)
          assert(theirs, record.name .. " takes " .. case[1])
        end
        local earlier = false -- refused by types and ranges
        for _, text in ipairs { "argument '", "out of range: expected", "must be positive", "must be at least",
          "must be one number" } do
          earlier = earlier or theirs ~= nil and theirs:find(text) ~= nil
        end
        if err and not earlier then -- without err: refused by the kernel
          assert.equal(bare(theirs, record), bare(err, record), record.name)
          refused = refused + 1
        end
      end
    end
    assert.is_true(refused >= 30 or os.getenv "MOTH_OP" ~= nil, tostring(refused))
  end)
end)

describe("an op of one's own with patterns", function()
  local lib
  before_each(function() lib = moth.library("patterned") end)
  after_each(function() lib:destroy() end)

  it("may compute sizes, and say what it takes", function()
    local schema = "fold(Tensor x, Tensor? scale, int parts, int[2] size, dtype? dtype=none) -> (Tensor, Tensor)"
    local fold = lib:define(schema, {
      dims = { x = "*L N : float", scale = "N : x", size = "H W" },
      let = { M = "floor_divide(N, parts)", ["*S"] = "list(H, W)" },
      check = {
        { "equal(M * parts, N)", "{N} numbers are not divisible into {parts} parts" },
        { "is_float(default_to(dtype, x.dtype))", "expected a float dtype, got {dtype}", "type" },
      },
      out = { "*L parts M : default_to(dtype, x.dtype)", "*S (H + W) : int64" },
      impl = function(x, _, parts, size, dtype)
        local shape = x:size()
        shape[#shape + 1], shape[#shape] = shape[#shape] / parts, parts
        return x:reshape(shape):to(dtype or x:dtype()):clone(),
          moth.zeros(size[1], size[2], size[1] + size[2], { dtype = "int64" })
      end,
    })
    local x = moth.randn(2, 6)
    local y, z = fold(x, nil, 3, { 4, 5 })
    assert.same({ 2, 3, 2 }, y:size())
    assert.same({ 4, 5, 9 }, z:size())
    assert.equal(moth.float64, (fold(x, moth.ones(6), 2, { 1, 1 }, moth.float64)):dtype())
    assert.same({ 3, 2 }, moth.fake_mode(function() return (fold(moth.randn(6), nil, 3, { 1, 1 })):size() end))
    local function refused(pattern, ...)
      local ok, err = pcall(fold, ...)
      assert.is_false(ok)
      assert.matches(pattern, err)
    end
    refused("6 numbers are not divisible into 4 parts", x, nil, 4, { 1, 1 })
    refused("scale must have the shape %[6%], got %[5%]; N = 6 as in x", x, moth.ones(5), 2, { 1, 1 })
    refused("x and scale must have the same dtype, got float32 and float64", x, moth.ones(6):double(), 2, { 1, 1 })
    refused("x must have a float dtype, got int64", x:long(), nil, 2, { 1, 1 })
    refused("x must have at least 1 dimension, %[%*L, N%], got %[%]", moth.ones(), nil, 2, { 1, 1 })
    refused("expected a float dtype, got int64", x, nil, 2, { 1, 1 }, moth.int64)
  end)

  it("may write to an argument, and have no result", function()
    local scale = lib:define("scale_(Tensor! x, Tensor by) -> self", { dims = { x = "* N", by = "N : x" },
      impl = function(x, by) return x:mul_(by) end })
    local note = lib:define("note(Tensor x) -> ()", { dims = { x = "2 : float" }, impl = function() end })
    local x = moth.ones(2, 3)
    assert.equal(x, scale(x, moth.full({ 3 }, 2)))
    assert.equal(12, x:sum():item())
    local function refused(pattern, fn, ...)
      local ok, err = pcall(fn, ...)
      assert.is_false(ok)
      assert.matches(pattern, err)
    end
    refused("by must have the shape %[3%], got %[2%]; N = 3 as in x", scale, x, moth.ones(2))
    local join = lib:define("join(Tensor[] xs, Tensor[] ys, Tensor z) -> Tensor", {
      dims = { xs = "N M : float", ys = "M : xs", z = "M" }, out = "(list(length(xs), M)) : z",
      impl = function(xs, _, z) return z:unsqueeze(1):expand(#xs, -1):clone() end })
    assert.same({ 2, 3 }, join({ moth.ones(2, 3), moth.ones(4, 3) }, {}, moth.ones(3)):size())
    refused("ys must be as many as xs: expected 2, got 1", join, { moth.ones(2, 3), moth.ones(4, 3) }, { moth.ones(3) },
      moth.ones(3))
    refused("xs must have the shape %[N, 3%], got %[4, 2%]; M = 3 as in z", join, { moth.ones(2, 3), moth.ones(4, 2) },
      {}, moth.ones(3))
    refused("ys must have the shape %[3%], got %[2%]; M = 3 as in z", join, { moth.ones(2, 3) }, { moth.ones(2) },
      moth.ones(3))
    refused("xs and ys must have the same dtype", join, { moth.ones(2, 3) }, { moth.ones(3):double() }, moth.ones(3))
    note(moth.ones(2))
    refused("x must have the shape %[2%], got %[3%]", note, moth.ones(3))
  end)
end)
