--- Calls every function of `require "moth_lua"` and every metamethod with arguments chosen at random.
--
--     luajit spec/fuzz/binding.lua SEED CALLS      in a folder whose files don't matter
--
-- The result must be a value or an error that is a readable string; ASan and UBSan find the rest. Left out are
-- addresses (those of from_ptr cannot be checked) and process.wait, which waits as long as it is told. MOTH_TRACE=1
-- prints the calls.
local ffi = require "ffi"
local B = require "moth_lua"
require "moth"

local seed, calls = tonumber(arg[1]) or 1, tonumber(arg[2]) or 10000
local trace = os.getenv("MOTH_TRACE")
local state = seed % 2 ^ 31
local function below(n)
  state = (state * 1103515245 + 12345) % 2 ^ 31
  return math.floor(state / 2 ^ 31 * n) + 1
end
local function one_of(list) return list[below(#list)] end

-- ---- functions ------------------------------------------------------------------------------

local functions, seen = {}, {}
local function collect(path, t)
  if seen[t] then return end
  seen[t] = true
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(keys) do
    local v, name = rawget(t, key), path .. "." .. tostring(key)
    if type(v) == "function" and name ~= "B.from_ptr" then
      -- Of Lua's functions only what the binding is made of: lua/moth has specs of its own.
      if debug.getinfo(v, "S").what == "C" and name ~= "B.process.wait" then functions[#functions + 1] = { name, v } end
    elseif type(v) == "table" and type(key) == "string" then
      collect(name, v)
    end
  end
end
collect("B", B)
do
  local x = B.ops.ones({ 2 }, { requires_grad = true })
  for name, object in pairs { node = B.grad_fn(B.ops.mul(x, 2)), generator = B.generator(1), dtype = B.dtype("int8"),
    device = B.device("cpu") } do
    collect(name, debug.getmetatable(object))
    if name == "node" then
      for _, method in ipairs { "name", "id", "next_functions", "saved" } do
        functions[#functions + 1] = { "node:" .. method, object[method] }
      end
    end
  end
  local op
  local mode = B.push_mode(function(func)
    op = func
    return x
  end)
  B.ops.neg(x)
  B.pop_mode(mode)
  collect("function object", getmetatable(op))
end
table.sort(functions, function(a, b) return a[1] < b[1] end)

-- ---- arguments ----------------------------------------------------------------------

local nan, inf = 0 / 0, math.huge
local numbers = { 0, 1, 2, 3, -1, -2, 1.5, -0.5, nan, inf, -inf, 7, 2 ^ 53, -2 ^ 53, 2 ^ 53 + 2, 2 ^ 63, 1e300, -0, 65 }
local strings = { "", "x", "sum", "mean", "float32", "int64", "cpu", "cuda", "cuda:9", "user", "\0", "%s%n", "add",
  "exp", "tanh", "constant", "i,j->ij", "push", ("x"):rep(3000), "self", "/nonexistent/file", "\255\254" }
local objects = {}
local function tensor()
  local kind = below(9)
  local size = one_of { {}, { 3 }, { 2, 3 }, { 0 }, { 1, 1, 2 }, { 2, 2, 2, 2 }, { 3, 0 } }
  local dtype = one_of { "float32", "float64", "int64", "bool", "float16", "uint8", "bfloat16", "int32" }
  local t = B.ops.zeros(size, { dtype = dtype })
  if kind == 1 then
    B.free(t)
  elseif kind == 2 then
    t = B.fake(t)
  elseif kind <= 4 and dtype:find("float") then
    B.set_requires_grad(t, true)
    if kind == 4 then t = B.ops.mul(t, 2) end
  elseif kind == 5 and #size > 1 then
    t = B.ops.transpose(t, 1, 2)
  elseif kind == 6 then
    t = B.make_subclass(t, {})
  end
  return t
end
local function returns(value) return function() return value end end
local makers = {
  function() return nil end, function() return below(2) == 1 end, function() return one_of(numbers) end,
  function() return one_of(numbers) end, function() return one_of(strings) end, tensor, tensor, tensor,
  function() return {} end, function() return { below(4) - 1, below(4) - 1 } end,
  function() return { one_of(numbers), one_of(numbers) } end, function() return { tensor(), tensor() } end,
  function() return { one_of(objects), one_of(objects), one_of(strings) } end,
  function() return { { 1, 2 }, { 3 } } end,
  function() return { [one_of { "dim", "dtype", "out", "keepdim", "device", "outer", "cpu" }] = one_of(objects) } end,
  function()
    return one_of { returns(nil), returns(1), returns(tensor()), error, returns({}), function(...) return ... end }
  end,
  function() return B.grad_fn(B.ops.mul(B.ops.ones({ 2 }, { requires_grad = true }), 3)) end,
  function() return B.dtype(one_of { "float32", "int8", "bool", "float64" }) end, function() return B.device("cpu") end,
  function() return B.generator(below(9)) end, function() return coroutine.create(print) end, returns(io.stdout),
  function() return newproxy(below(2) == 1) end, returns(5LL), function() return ffi.new("float[4]") end,
  function() return ffi.new("void *") end, returns(print), returns(B), returns(B.Tensor),
  function() return B.pointer(B.ops.ones({ 2 })) end,
}
local function value()
  if below(3) == 1 and #objects > 0 then return one_of(objects) end
  return one_of(makers)()
end

-- Resets the modes that a call may have set.
local modes, scopes = {}, {}
local function restore()
  B.fail_at(0)
  while scopes[1] do pcall(B.scope_end, table.remove(scopes)) end
  for i = #modes, 1, -1 do pcall(modes[i][1], modes[i][2]) end
  modes = {}
  B.set_fake(false)
  B.set_grad_enabled(true)
  B.set_autocast { cpu = false, cuda = false, user = false }
  B.default_dtype("float32")
  B.num_threads(1)
  B.on_subclass(function(_, func, args) return func(unpack(args, 1, args.n)) end)
end

local keeps = { ["B.push_mode"] = B.pop_mode, ["B.push_trace"] = B.pop_trace, ["B.push_count"] = B.pop_count,
  ["B.open_saved_hooks"] = B.close_frame, ["B.disable_saved_hooks"] = B.close_frame,
  ["B.watch_nodes"] = B.close_frame }
local function perform(f, args, n)
  local results = { pcall(f[2], unpack(args, 1, n)) }
  if not results[1] then
    local err = results[2]
    local ours = type(err) == "string" and #err > 0 and not err:find("^[^%w%[%(\"'<…/.]")
    if not ours and err ~= nil and type(err) == "string" then error(f[1] .. ": unreadable error: " .. err, 0) end
  end
  if keeps[f[1]] and results[1] then modes[#modes + 1] = { keeps[f[1]], results[2] } end
  if f[1] == "B.scope_begin" then scopes[#scopes + 1] = results[2] end
  return results
end

local ok = 0
restore()
for _ = 1, 40 do objects[#objects + 1] = one_of(makers)() or false end
for i = 1, calls do
  local f, args, n = one_of(functions), {}, below(6) - 1
  local good = pcall(function()
    for k = 1, n do args[k] = k == 1 and below(3) == 1 and tensor() or value() end
  end)
  if not good then restore() end -- memory was to fail, or a mode refused
  if trace then
    local texts = {}
    for k = 1, n do
      local text = type(args[k]) == "userdata" and "userdata" or tostring(args[k])
      texts[k] = text:gsub("%c", "?"):sub(1, 30)
    end
    io.stderr:write(i, ": ", f[1], "(", table.concat(texts, ", "), ")\n")
  end
  local results = perform(f, args, n)
  if results[1] then
    ok = ok + 1
    if results[2] ~= nil and below(4) == 1 then objects[below(40)] = results[2] end
  end
  if i % 20 == 0 then restore() end
  if i % 200 == 0 then objects[below(40)] = one_of(makers)() or false end
  if i % 5000 == 0 then
    objects = {}
    for _ = 1, 40 do objects[#objects + 1] = one_of(makers)() or false end
    collectgarbage()
  end
end
restore()
objects = {}
collectgarbage()
collectgarbage()
print(("%d calls of %d functions, %d returned"):format(calls, #functions, ok))
os.exit(0, true)
