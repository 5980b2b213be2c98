-- Every public function, called wrongly: it works by its documented rule, or raises an error that names it, at the
-- line of the call, and that is none of Lua's own. The functions are those of the live tables: none is left out.
local moth = require "moth"
local signature = require "moth.utils.signature"
local B = require "moth_lua"

-- Modules in which functions may still fail otherwise.
local pending = {}

-- Functions that hand on what they are given to a function of the user's, or take any values.
local passes_on = {}
for name in ([[no_grad enable_grad inference_mode no_grad_fn scope dispatch_mode count trace fake_mode autocast vjp
  stream device range is_tensor is_dtype type broadcast_shapes map gradcheck gradgradcheck
  make_graphed_callables is_a name Identity]]):gmatch("%S+") do passes_on[name] = true end

-- It raises what the last call of C said.
local skip = { ["capi.check"] = true }
-- They take long. vgg11, vit_b_16, resnet18 and roofline take the same arguments.
for name in ("utils.system.sleep benchmark.machine models.vgg13 models.vgg16 models.vgg19 models.vgg11_bn "
  .. "models.vgg13_bn models.vgg16_bn models.vgg19_bn models.vit_b_32 models.vit_l_16 models.resnet34 "
  .. "models.resnet50"):gmatch "%S+" do
  skip[name] = true
end

-- name -> function, of all modules; "cuda.Stream" and so on
local functions, classes = require "lua.surface"(pending)
local names = {}
for name, fn in pairs(require("moth.tensor").methods) do functions["x:" .. name] = fn end
for name in pairs(B.internal) do functions["ops.moth." .. name] = B.ops[name] end
for name in pairs(functions) do names[#names + 1] = name end
for name, cls in pairs(classes) do
  if not functions[name] then
    functions[name] = cls
    names[#names + 1] = name
  end
end
table.sort(names)

local function pack(...) return { n = select("#", ...), ... } end
local function f() return 1 end

local x, calls, bogus, many
-- The calls: { n, arguments… }. (x.free takes them their tensors, so they are made again then.)
local function prepare()
  x, calls, many = moth.ones(2, 3), {}, {}
  local index = moth.ones({ 2, 3 }, { dtype = moth.int64 })
  local wrong = { n = 9, nil, "/dev/null/no", 1.5, 2, {}, { 1 }, f, true, x }
  for i = 1, wrong.n do
    calls[#calls + 1] = { n = 1, wrong[i] }
    for _, first in ipairs({ x, index, 2, "/dev/null/no", f }) do
      calls[#calls + 1] = { n = 2, first, wrong[i] }
      for _, second in ipairs(first == index and {} or { x, 1 }) do
        calls[#calls + 1] = { n = 3, first, second, wrong[i] }
      end
    end
  end
  calls[#calls + 1] = { n = 0 }
  bogus = { { n = 1, { no_such_option = 1 } }, { n = 2, x, { no_such_option = 1 } },
    { n = 3, x, x, { no_such_option = 1 } }, { n = 2, x, { 1, no_such_option = 1 } },
    { n = 2, 2, { no_such_option = 1 } } }
  for i, v in ipairs({ x, 1, "/dev/null/no", { x } }) do
    many[i] = pack(v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v)
  end
  for _, v in ipairs({ 1, "/dev/null/no" }) do
    many[#many + 1] = pack(x, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v)
  end
end
prepare()

local function shown(call)
  local parts = {}
  for i = 1, call.n do
    local v = call[i]
    parts[i] = B.is_tensor(v) and "x" or type(v) == "table" and "{…}" or type(v) == "string" and ("%q"):format(v)
      or tostring(v):gsub("0x%x+", "")
  end
  return table.concat(parts, ", ")
end

local raw = { "attempt to ", "bad argument", "'for' ", "got no value", "number expected", "string expected",
  "table expected", "stack overflow", "invalid value", "invalid order function", "malformed", "internal error" }

-- What is wrong with an error of a call of `name`, or nil.
local function objection(name, message)
  if type(message) ~= "string" then return "an error that is no text" end
  for _, pattern in ipairs(raw) do
    if message:find(pattern, 1, true) then return "an error of Lua's" end
  end
  local own = name:match("[%w_]+$")
  if not message:find(own, 1, true) then return "the error does not name it" end
  local bracket = message:match("%.lua:%d+: %[[%w_.]-([%w_]+)%]")
  if bracket and bracket ~= own then return "the error names another function" end
  if not message:find("surface_spec%.lua:%d+:") then return "the error is not at the line of the call" end
end

-- Settings that a call may have left.
local pressure = moth.memory.set_gc_pressure(64 * 2 ^ 20)
local function reset()
  moth.memory.fail_at(0)
  moth.memory.set_limit(false)
  moth.memory.set_gc_pressure(pressure)
  moth.memory.record_history(false)
  moth.autograd.set_detect_anomaly(false)
end

local function restore(fn)
  local dtype, threads, level = moth.get_default_dtype(), moth.get_num_threads(), moth.cpu_level()
  local rng, deterministic = moth.get_rng_state(), moth.are_deterministic_algorithms_enabled()
  local recording = moth.is_grad_enabled()
  fn()
  moth.set_default_dtype(dtype)
  moth.set_num_threads(threads)
  moth.cpu_level(level)
  moth.set_rng_state(rng)
  moth.use_deterministic_algorithms(deterministic)
  moth.set_grad_enabled(recording)
  reset()
end

local function text_of(fn) return (signature.of(type(fn) == "table" and fn.__init or fn)) end
local function takes_tables(name, fn)
  local text = text_of(fn)
  return passes_on[name:match("[%w_]+$")] or text and (text:find("any") or text:find("table") or text:find("callable"))
end
local function takes_many(name, fn)
  local text = text_of(fn)
  return passes_on[name:match("[%w_]+$")] or text and text:find("%.%.%.")
end

describe("every public function #surface", function()
  it("is in the walk", function()
    assert.is_true(#names > 700, #names .. " functions")
  end)

  it("says what is wrong with a call", function()
    local found, told = {}, {}
    local function tell(name, call, what)
      local key = name .. what:match("^[^:]*")
      if not told[key] then
        told[key] = true
        found[#found + 1] = ("%s(%s): %s"):format(name, shown(call), what)
      end
    end
    restore(function()
      for _, name in ipairs(names) do
        local fn = functions[name]
        local only = os.getenv("MOTH_SURFACE")
        if not skip[name] and (not only or name:find(only)) then
          if os.getenv("MOTH_VERBOSE") then io.stderr:write(name, "\n") end
          for kind, list in pairs({ calls = calls, bogus = bogus, many = many }) do
            for _, call in ipairs(list) do
              if name == "memory.fail_at" then moth.memory.fail_at(0) end
              if not pcall(moth.numel, x) then prepare() end
              local ok, message
              local nothing = call[1] == nil or type(call[1]) == "table" and next(call[1]) == nil
              if nothing and name == "tensorboard.SummaryWriter" then
                ok, message = false, "surface_spec.lua:1: it would make SummaryWriter's folder here"
              else
                ok, message = pcall(fn, unpack(call, 1, call.n))
              end
              if name:find("^memory%.") then
                moth.memory.set_limit(false)
                moth.memory.record_history(false)
              end
              if not ok then
                local what = objection(name, message)
                if what then tell(name, call, what .. ": " .. tostring(message):gsub("\n.*", ""):sub(1, 200)) end
              elseif kind == "bogus" and not takes_tables(name, fn) then
                tell(name, call, "an unknown option passes")
              elseif kind == "many" and not takes_many(name, fn) then
                tell(name, call, "too many arguments pass")
              end
              if name:find("^memory%.") or name:find("anomaly") then reset() end
            end
          end
        end
      end
    end)
    if #found > 0 then
      local out = os.getenv("MOTH_SURFACE_OUT") and io.open(os.getenv("MOTH_SURFACE_OUT"), "w")
      if out then
        out:write(table.concat(found, "\n"), "\n")
        out:close()
      end
      error(#found .. " findings\n" .. table.concat(found, "\n", 1, math.min(#found, 30)), 0)
    end
  end)

  it("names the option that a misspelt one was meant to be, methods of classes included", function()
    local found, tried = {}, 0
    local function try(name, fn, self)
      local text = signature.of(fn)
      if not text then return end
      local _, params = signature.parameters(text)
      local at = #params
      while at > 0 and #params[at].name < 4 do at = at - 1 end
      local first = params[1]
      if at == 0 or text:find "%.%.%." or not first.named_only and first.type:find "table" or first.type:find "any"
        or first.type:find "callable" or first.type:find "Module" then
        return
      end
      local right = params[at].name
      local wrong = right:sub(1, 2) .. right:sub(4) -- a letter is missing
      for _, p in ipairs(params) do if p.name == wrong then return end end
      tried = tried + 1
      local said = ("unknown option '%s'; did you mean '"):format(wrong)
      local ok, message
      if self then ok, message = pcall(fn, self, { [wrong] = 1 }) end
      if not tostring(message):find(said, 1, true) then ok, message = pcall(fn, { [wrong] = 1 }) end
      if not tostring(message):find(said, 1, true) then
        found[#found + 1] = ("%s{ %s }: %s"):format(name, wrong, ok and "passes" or tostring(message):gsub("\n.*", ""))
      end
    end
    for _, name in ipairs(names) do
      local fn = functions[name]
      if type(fn) == "function" then try(name, fn) end
    end
    for name, cls in pairs(classes) do
      for key, fn in pairs(cls) do
        if type(key) == "string" and type(fn) == "function" then
          try(name .. ":" .. key, fn, setmetatable({}, { __index = cls }))
        end
      end
    end
    assert.is_true(tried > 500, tried .. " tried")
    assert.same({}, found)
  end)
end)
