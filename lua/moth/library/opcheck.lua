--- moth.library.opcheck: the checks that the specs make of the table's ops, for an op that was defined at run time.
local B = require "moth_lua"
local check = require "moth.utils.check"
local definitions = require "moth.library.definitions"
local dispatch = require "moth.dispatch"
local gradcheck = require "moth.autograd.gradcheck"
local each = require "moth.each"
local source = require "moth.lang.source"

local is_tensor = B.is_tensor

local function pack(...) return { n = select("#", ...), ... } end
local function describe(t)
  return ("%s [%s] on %s"):format(B.tensor_dtype(t).name, table.concat(B.size(t), ", "), tostring(B.tensor_device(t)))
end

-- A sample's arguments with fn(tensor, argument) in place of each tensor.
local function mapped(op, sample, fn)
  local out = { n = sample.n }
  for i = 1, sample.n do
    local v, a = sample[i], op.args[i]
    if is_tensor(v) then
      v = fn(v, a, i)
    elseif type(v) == "table" and is_tensor(v[1]) then
      local list = {}
      for k, t in ipairs(v) do list[k] = fn(t, a, i, k) end
      v = list
    end
    out[i] = v
  end
  return out
end

local function copy(t) return B.ops.clone(B.alias(t, false)) end

-- The same elements behind other strides.
local function strided(t)
  if B.dim(t) == 0 then return copy(t) end
  return B.ops.transpose(B.ops.clone(B.ops.transpose(B.alias(t, false), 1, -1)), 1, -1)
end

local function sample_of(op, s, number)
  if type(s) == "string" then
    local moth = require "moth"
    local chunk, err = source.statements("return " .. s)
    if not chunk then check.fail("[library.opcheck] sample %d: %s", number, err) end
    setfenv(chunk, setmetatable({}, { __index = function(_, name) return rawget(moth, name) or _G[name] end }))
    return pack(chunk())
  elseif type(s) ~= "table" or is_tensor(s) then
    check.fail("[library.opcheck] sample %d: expected a list of arguments or a text such as \"randn(2,3)\", got %s",
      number, type(s))
  end
  local n = 0
  for k in each(s) do if type(k) == "number" and k > n then n = k end end
  local out = { n = n }
  for i = 1, n do out[i] = s[i] end
  if n > #op.args then
    check.fail("[library.opcheck] sample %d has %d arguments, the schema %d: %s", number, n, #op.args, op.schema)
  end
  return out
end

local tests = {}
local order = { "schema", "arguments", "modes", "fake", "layout", "out", "inplace", "autocast", "gradient",
  "reference" }

local function close(a, b, tolerance)
  local moth = require "moth"
  return moth.allclose(a, b, { rtol = tolerance or 1e-5, atol = tolerance or 1e-6, equal_nan = true })
end

local function same(run, what, a, b)
  for i = 1, a.n do
    if is_tensor(a[i]) and (B.tensor_dtype(a[i]) ~= B.tensor_dtype(b[i]) or describe(a[i]) ~= describe(b[i]) or
      not close(a[i], b[i])) then
      run.fail("%s: result %d is %s with other values than %s of the plain call", what, i, describe(b[i]),
        describe(a[i]))
    end
  end
end

local function no_aliases(t) return copy(t) end

function tests.schema(run)
  local results = run.call(mapped(run.op, run.sample, no_aliases))
  if results.n ~= run.op.nresults then
    run.fail("there are %d results, where the schema says %d", results.n, run.op.nresults)
  end
  run.results = results
  return true
end

function tests.arguments(run)
  local given, versions = mapped(run.op, run.sample, no_aliases), {}
  local before = mapped(run.op, given, no_aliases)
  for i = 1, given.n do if is_tensor(given[i]) then versions[i] = given[i]:version() end end
  run.call(given)
  for i, a in ipairs(run.op.args) do
    if is_tensor(given[i]) and a.mutated and given[i]:version() == versions[i] then
      run.fail("argument '%s' is marked as written to, but its version has not changed", a.name)
    elseif is_tensor(given[i]) and not a.mutated and (given[i]:version() ~= versions[i] or
      not close(given[i], before[i])) then
      run.fail("argument '%s' was written to, and the schema does not say so: Tensor! %s", a.name, a.name)
    end
  end
  return true
end

function tests.modes(run)
  local seen = 0
  dispatch.dispatch_mode(function(func, args)
    if func.name == run.op.name then seen = seen + 1 end
    return func(unpack(args, 1, args.n))
  end, function() return run.call(mapped(run.op, run.sample, no_aliases)) end)
  if run.op.kind ~= "composite" and seen ~= 1 then
    run.fail("a dispatch mode saw %d calls of the op, where there was one", seen)
  end
  return true
end

function tests.fake(run)
  local has_fake = B.op_facts(run.op.name).has_fake or run.op.kind == "composite" or run.op.returns_self
  if run.op.nresults == 0 or not has_fake then return false end
  local fakes = dispatch.fake_mode(function()
    return run.call(mapped(run.op, run.sample, function(t)
      return B.ops.empty(B.size(t), { dtype = B.tensor_dtype(t), device = B.tensor_device(t) })
    end))
  end)
  for i = 1, run.op.nresults do
    if describe(fakes[i]) ~= describe(run.results[i]) then
      run.fail("result %d is %s, and its fake %s", i, describe(run.results[i]), describe(fakes[i]))
    end
  end
  return true
end

function tests.layout(run)
  if run.random then return false end
  same(run, "with transposed arguments", run.results, run.call(mapped(run.op, run.sample, strided)))
  return true
end

local function with_options(given, nargs, options)
  local out = { n = nargs + 1 }
  for i = 1, nargs do out[i] = given[i] end
  for i = given.n + 1, nargs do -- arguments with defaults are left out
    out[i], out.n = nil, given.n + 1
  end
  out[out.n] = options
  return out
end

function tests.out(run)
  if run.random or run.op.nresults ~= 1 or run.op.returns_self then return false end
  local given = mapped(run.op, run.sample, no_aliases)
  local target = B.ops.zeros(B.size(run.results[1]), { dtype = B.tensor_dtype(run.results[1]),
    device = B.tensor_device(run.results[1]) })
  local results = run.call(with_options(given, given.n, { out = target }))
  same(run, "with out=", run.results, results)
  if not close(results[1], target) then run.fail("with out=: the result was not written to the target") end
  return true
end

function tests.inplace(run)
  local fn = run.op.inplace and B.inplace_op(run.op.name)
  if not fn or run.random then return false end
  local given = mapped(run.op, run.sample, no_aliases)
  if not is_tensor(given[1]) or describe(given[1]) ~= describe(run.results[1]) then return false end
  same(run, "in place", run.results, pack(fn(unpack(given, 1, given.n))))
  return true
end

function tests.autocast(run)
  if run.op.amp == "keep" then return false end
  dispatch.autocast(function() return run.call(mapped(run.op, run.sample, no_aliases)) end)
  return true
end

function tests.gradient(run)
  local op = run.op
  if run.random or op.grad == "none" or op.grad == "unimplemented" or #op.args == 0 then return false end
  local inputs, places, n = {}, {}, 0
  local sample = mapped(op, run.sample, function(t, a, i, k)
    if a.mutated or not B.tensor_dtype(t).is_floating_point then return copy(t) end
    t = B.ops.to(copy(t), { dtype = "float64" })
    if type(op.grad) ~= "table" or op.grad[a.name] and op.grad[a.name] ~= "unimplemented" then
      n = n + 1
      inputs[n], places[n] = B.set_requires_grad(t, true), { i, k }
    end
    return t
  end)
  for _, a in ipairs(op.args) do if a.mutated then return false end end
  if n == 0 then return false end
  local function of_inputs(...)
    for at, place in ipairs(places) do
      local v = (select(at, ...))
      if place[2] then sample[place[1]][place[2]] = v else sample[place[1]] = v end
    end
    return unpack(run.call(sample), 1, op.nresults)
  end
  gradcheck.gradcheck(of_inputs, inputs)
  if run.options.gradgrad then gradcheck.gradgradcheck(of_inputs, inputs) end
  return true
end

-- A reference is called with all arguments, as the op's own function is.
local function with_defaults(op, given)
  for i, a in ipairs(op.args) do
    if given[i] == nil and a.value ~= nil then
      local v = a.values and a.values[a.value + 1] or a.value
      if a.count then
        local list = {}
        for k = 1, a.count do list[k] = v end
        v = list
      end
      given[i] = v
    elseif given[i] == nil and a.like then
      given[i] = given[a.like.at + 1]
    end
  end
  given.n = #op.args
  return given
end

function tests.reference(run)
  if not run.op.reference or run.random then return false end
  local given = with_defaults(run.op, mapped(run.op, run.sample, no_aliases))
  local expected = pack(run.op.reference(unpack(given, 1, given.n)))
  for i = 1, run.op.nresults do
    if not close(run.results[i], expected[i], run.options.tolerance) then
      run.fail("result %d differs from that of the reference", i)
    end
  end
  return true
end

return function(name, samples, options)
  local op = definitions.record(name)
  if not op then check.fail("[library.opcheck] '%s' was not defined", name) end
  options = options or {}
  check.options("library.opcheck", options, "tests gradgrad tolerance")
  samples = samples or op.samples
  if #samples == 0 then check.fail("[library.opcheck] '%s' has no samples; give a list of lists of arguments", name) end
  local fn, passed = B.op(name), {}
  for number, s in ipairs(samples) do
    local test
    local run = { op = op, options = options, sample = sample_of(op, s, number),
      random = op.kind == "random" or op.draws }
    function run.call(args)
      return pack(fn(unpack(args, 1, args.n)))
    end
    function run.fail(text, ...)
      error({ opcheck = text:format(...) }, 0)
    end
    local wanted = {}
    for _, t in ipairs(options.tests or order) do
      if not tests[t] then check.fail("[library.opcheck] there is no test '%s'%s", t, check.suggest(t, order)) end
      wanted[t] = true
    end
    wanted.schema = true
    for _, t in ipairs(order) do
      if wanted[t] then
        test = t
        local ok, done = pcall(tests[t], run)
        if not ok then
          check.fail("[library.opcheck] %s, sample %d, %s: %s", name, number, test,
            type(done) == "table" and done.opcheck or (tostring(done):gsub("^[^\n:]+:%d+: ", "")))
        end
        if done then passed[t] = (passed[t] or 0) + 1 end
      end
    end
  end
  return passed
end
