-- Shape rules agree with the results of calls: for all samples of all ops, real and fake, in several layouts.
local ffi = require "ffi"
local moth = require "moth"
local B = require "moth_lua"
local S = require "ops.support"
local records = require "moth.records"
local capi = moth.capi
local build = os.getenv("MOTH_BUILD") or "build"

local function record(name)
  for _, op in ipairs(S.records) do if op.name == name then return op end end
end
local function rule(op) return op.kind ~= "composite" and op.shape ~= "dynamic" end

-- "float32 [2, 3] stride [3, 1] offset 0"
local function text(dtype, shape, stride, offset)
  return ("%s [%s] stride [%s] offset %d"):format(dtype, table.concat(shape, ", "), table.concat(stride, ", "), offset)
end
local function facts(t) return text(S.dtype_of(t), B.size(t), B.stride(t), B.storage_offset(t)) end

local function results_of(op, fn, args)
  local out, results = {}, { fn(unpack(args, 1, args.n)) }
  for i = 1, op.nresults do out[i] = facts(results[i]) end
  return table.concat(out, "; ")
end

-- The result of the rule for fakes of the arguments.
local function inferred(op, args)
  local values = records.canonical(op, S.bind(op, args))
  local list = {}
  for i, a in ipairs(op.args) do
    local v = values[a.name]
    if type(v) == "string" and a.type == "DTYPE" then v = B.dtype(v) end
    if type(v) == "string" and a.type == "DEVICE" then v = moth.device(v) end
    list[i] = v
  end
  local out = {}
  for i, m in ipairs(capi.infer(op.name, unpack(list, 1, #op.args))) do
    out[i] = text(m.dtype, m.shape, m.stride, m.offset)
  end
  return table.concat(out, "; ")
end

local function faked(op, args)
  return S.map(op, args, function(t) return B.fake(t) end)
end

-- The differences of one op between its results, the rule and fake results.
local function differences(op)
  local wrong, cases = {}, 0
  local function expect(what, want, ok, got)
    if not ok then got = "error: " .. tostring(got) end
    if want ~= got then wrong[#wrong + 1] = ("%s: %s, the result is %s"):format(what, got, want) end
    cases = cases + 1
  end
  for _, sample in ipairs(op.samples) do
    for _, dtype in ipairs { "float32", "float64", "bfloat16", "int64" } do
      for _, layout in ipairs { "contiguous", "transposed", "offset" } do
        local ok, args = pcall(S.evaluate, sample, { dtype = dtype })
        if ok then
          args = S.map(op, args, function(t) return S.layout(t, layout) end)
          local where = ("%s(%s) %s %s"):format(op.name, sample, dtype, layout)
          local fakes = faked(op, args)
          local done, want = pcall(results_of, op, B.ops[op.name], args)
          if done then
            expect("the rule of " .. where, want, pcall(inferred, op, fakes))
            expect("a fake of " .. where, want, pcall(results_of, op, B.ops[op.name], fakes))
          end
        end
      end
    end
  end
  return wrong, cases
end

describe("shape rules", function()
  it("say what calls give", function()
    local all, cases = {}, 0
    for _, op in ipairs(S.selected()) do
      if rule(op) and op.nresults > 0 then
        local wrong, n = differences(op)
        for _, w in ipairs(wrong) do all[#all + 1] = w end
        cases = cases + n
      end
    end
    assert.is_true(cases > 0)
    print(("  %d cases of shape rules and fakes"):format(cases))
    assert.equal("", table.concat(all, "\n", 1, math.min(#all, 30)))
  end)

  it("allocate nothing, and count nothing #quick", function()
    local stats = ffi.new("MothMemStats[2]")
    local x, y, out = moth.randn(3, 4), moth.randn(4, 5), ffi.new("MothMeta[4]")
    local args, op = ffi.new("MothValue[2]"), moth.C.moth_op_find("mm")
    args[0], args[1] = capi.value(x), capi.value(y)
    local version = B.version(x)
    collectgarbage()
    collectgarbage "stop" -- else garbage of other specs is freed meanwhile
    moth.C.moth_memory_stats(stats)
    for _ = 1, 100 do capi.check(moth.C.moth_op_infer(op, 2, args, out)) end
    moth.C.moth_memory_stats(stats + 1)
    collectgarbage "restart"
    assert.equal(tonumber(stats[0].allocs), tonumber(stats[1].allocs))
    assert.equal(tonumber(stats[0].live), tonumber(stats[1].live))
    assert.equal(version, B.version(x))
    assert.same({ 3, 5 }, { tonumber(out[0].shape[0]), tonumber(out[0].shape[1]) })
  end)

  it("are asked by capi.infer #quick", function()
    local m = capi.infer("narrow", moth.empty(5, 3), 0, -4, 2)[1]
    assert.same({ shape = { 2, 3 }, stride = { 3, 1 }, offset = 3, dtype = "float32", device = 0 }, m)
    assert.same({ 1, 3 }, capi.infer("sum", moth.empty(5, 3), { 0 }, true)[1].shape)
    assert.same({ 7, 3 }, capi.infer("cat", { moth.empty(5, 3), moth.empty(2, 3) })[1].shape)
    assert.equal("int64", capi.infer("arange", 0, 5)[1].dtype)
    assert.equal(2, #capi.infer("sort", moth.empty(4)))
    assert.error_matches(function() capi.infer("mm", moth.empty(5, 3), moth.empty(4, 3)) end, "cannot be multiplied")
    assert.error_matches(function() capi.infer("zeros", { 2, -3 }) end, "must not be negative")
    assert.error_matches(function() capi.infer("softmax", moth.empty(2), 1) end, "expected 0 to 0")
    assert.error_matches(function() capi.infer("nonzero", moth.empty(2)) end, "depends on data")
    assert.error_matches(function() capi.infer("matmul", moth.empty(2), moth.empty(2)) end, "made of other ops")
    assert.error_matches(function() capi.infer("mmm", moth.empty(2)) end, "no op 'mmm'")
  end)

  -- A library of C sources.
  local function compiled(...)
    local library = os.tmpname() .. ".so"
    local pipe = assert(io.popen(("gcc -shared -fPIC -O1 -std=gnu17 -I. -Isrc -I%s/gen -o %s %s -L%s -lmoth 2>&1; \z
      echo status=$?"):format(build, library, table.concat({ ... }, " "), build)))
    local said = pipe:read("*a")
    pipe:close()
    assert.matches("status=0", said)
    local loaded = ffi.load(library)
    os.remove(library)
    return loaded
  end
  ffi.cdef [[void plant(const char *op, int which); void plant_rule(const char *op, void *rule);]]

  it("that are wrong are found #noasan", function()
    local check = compiled "spec/dispatch/rules_check.c"
    finally(function() check.plant("", 0) end)
    local x, y = moth.randn(3, 4), moth.randn(4, 5)
    for _, case in ipairs { { "mm", 1, { n = 2, x, y } }, { "softmax", 2, { n = 2, x, 1 } },
      { "add", 1, { n = 2, x, x } }, { "transpose", 3, { n = 3, x, 1, 2 } }, { "sum", 2, { n = 2, x, 1 } } } do
      local op, args = record(case[1]), case[3]
      local want = results_of(op, B.ops[op.name], args) -- before: a kernel would write where there is no memory
      assert.equal(want, inferred(op, faked(op, args)))
      check.plant(op.name, case[2])
      assert.not_equal(want, inferred(op, faked(op, args)), op.name)
      local _, fake = pcall(results_of, op, B.ops[op.name], faked(op, args)) -- or it lies outside the storage
      assert.not_equal(want, fake, op.name)
      check.plant("", 0)
      assert.equal(want, inferred(op, faked(op, args)))
    end
  end)

  it("that come from a wrong pattern are found #noasan", function()
    local path = package.path
    package.path = "src/ops/?.lua;" .. path
    finally(function() package.path = path end)
    local schema, shapes = require "schema", require "shapes"
    local _, table_of = schema.load "src/ops"
    local check = compiled "spec/dispatch/rules_check.c"
    -- Of rules that call nothing: functions of the library are not there for one from outside.
    for _, case in ipairs { { "mm", "contract", "self ik, mat2 kj -> ji" }, { "sort", "out", { "*", "* : int32" } },
      { "tril", "out", "* C R" }, { "clone", "out", "* 1" } } do
      local op = table_of[case[1]]
      op[case[2]] = case[3]
      local source = os.tmpname() .. ".c"
      local f = assert(io.open(source, "w"))
      f:write('#include "dispatch/pattern.h"\n', shapes.text(op))
      f:close()
      local planted = compiled(source)
      os.remove(source)
      ffi.cdef(("int moth_shape_%s(void *c, void *out);"):format(op.name))
      local found = 0
      for _, sample in ipairs(record(op.name).samples) do
        local args = S.evaluate(sample, { dtype = "float32" })
        local want = results_of(op, B.ops[op.name], args) -- before: a kernel would write where there is no memory
        check.plant_rule(op.name, ffi.cast("void *", planted["moth_shape_" .. op.name]))
        if inferred(record(op.name), faked(record(op.name), args)) ~= want then found = found + 1 end
        check.plant_rule("", nil)
      end
      assert.is_true(found > 0, op.name)
    end
  end)
end)

describe("out #quick", function()
  local function allocated(fn)
    local stats = ffi.new("MothMemStats[2]")
    moth.C.moth_memory_stats(stats)
    fn()
    moth.C.moth_memory_reset_peak()
    moth.C.moth_memory_stats(stats + 1)
    collectgarbage "restart"
    return tonumber(stats[1].allocs - stats[0].allocs)
  end

  it("of every kind of op is written to directly", function()
    local x, y, out = moth.randn(64, 64), moth.randn(64, 64), moth.empty(64, 64)
    local row = moth.empty(64)
    for name, fn in pairs {
      mm = function() B.ops.mm(x, y, { out = out }) end, softmax = function() B.ops.softmax(x, 2, { out = out }) end,
      add = function() B.ops.add(x, y, { out = out }) end, cumsum = function() B.ops.cumsum(x, 1, { out = out }) end,
      sum = function() B.ops.sum(x, 1, { out = row }) end, cat = function()
        B.ops.cat({ x:narrow(1, 1, 32), y:narrow(1, 1, 32) }, 1, { out = out })
      end,
      tril = function() B.ops.tril(x, { out = out }) end, clone = function() B.ops.clone(x, { out = out }) end,
    } do
      fn()
      local bytes = ffi.new("MothMemStats[1]")
      moth.C.moth_memory_stats(bytes)
      local live = tonumber(bytes[0].live)
      moth.C.moth_memory_reset_peak()
      fn()
      moth.C.moth_memory_stats(bytes)
      -- nothing of the result's size; kernels may have small workspaces
      assert.is_true(tonumber(bytes[0].peak) - live < 64 * 64 * 4 or name == "sum", name)
    end
    assert.equal(0, allocated(function() moth.C.moth_mm_out(capi.tensor(x), capi.tensor(y), capi.tensor(out)) end))
    assert.same(x:mm(y):totable(), B.ops.mm(x, y, { out = out }):totable())
  end)

  it("that shares memory with an argument, or is no dense tensor, gets a copy", function()
    local x, y = moth.randn(5, 5), moth.randn(5, 5)
    local want = x:mm(y):totable()
    local t = x:clone()
    assert.same(want, B.ops.mm(t, y, { out = t }):totable())
    local wide = moth.zeros(5, 10)
    B.ops.mm(x, y, { out = wide:narrow(2, 3, 5) })
    assert.same(want, wide:narrow(2, 3, 5):totable())
    assert.equal(0, wide:narrow(2, 1, 2):abs():sum():item())
    local double = moth.empty(5, 5, { dtype = moth.float64 })
    B.ops.mm(x, y, { out = double })
    assert.same(want, double:totable())
    local half = moth.randn(10)
    local first, second = half:narrow(1, 1, 6), half:narrow(1, 3, 6)
    local sums = first:cumsum(1):totable()
    assert.same(sums, B.ops.cumsum(first, 1, { out = second }):totable())
    local one = moth.empty(5):expand(5, 5)
    assert.error_matches(function() B.ops.mm(x, y, { out = one }) end, "several elements in one place")
    assert.error_matches(function() B.ops.mm(x, y, { out = moth.empty(4, 5) }) end, "shape")
    local order = moth.randn(7)
    assert.error_matches(function() B.ops.sort(order, { out = order }) end, "unknown option 'out'")
  end)
end)
