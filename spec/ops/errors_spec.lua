-- Error inputs: those of the records, and values that fit no op, for every op: always a Lua error, never a crash.
local S = require "ops.support"
local B = require "moth_lua"
local ops = B.ops

local records, garbage = S.counter("errors"), S.counter("garbage")

local function call(name, args) return pcall(ops[name], unpack(args, 1, args.n)) end

local function matches(message, patterns)
  for p in (patterns .. "|"):gmatch("(.-)|") do
    if message:find(p) then return true end
  end
  return false
end

local function position(message) return message:find("^[^:\n]+:%d+: ") ~= nil end

-- A released tensor: its handle is there, the tensor is not.
local function released()
  local t = ops.zeros({ 2 })
  t:free()
  return t
end

-- Values that no argument takes, and those that only some kinds take.
local function bad_values()
  return {
    { "io.stdout", io.stdout }, { "newproxy()", newproxy() }, { "newproxy(true)", newproxy(true) }, { "a function",
      print },
    { "a coroutine", coroutine.create(print) }, { "a released tensor", released() },
    { "cdata", require("ffi").new("int[4]") }, { "a string", "surely no dtype or device", STRING = true },
    { "a table", { "x", {} } }, { "an empty table", {}, TENSORS = true, INTS = true, DIMS = true, keywords = true },
    { "a table of options", { surely_unknown = 1 } }, { "NaN", 0 / 0, FLOAT = true, SCALAR = true, OPERAND = true },
    { "2.5", 2.5, FLOAT = true, SCALAR = true, OPERAND = true }, { "inf", math.huge, FLOAT = true, SCALAR = true,
      OPERAND = true },
    { "2^53 + 2", 2 ^ 53 + 2, FLOAT = true, SCALAR = true, OPERAND = true },
    { "false", false, BOOL = true, SCALAR = true, OPERAND = true },
    { "a dtype", B.dtype("float32"), DTYPE = true }, { "a generator", B.generator(1), GENERATOR = true },
    { "an array with a hole", { 1, nil, 3 }, INTS = true, DIMS = true },
  }
end

describe("errors", function()
  for _, op in ipairs(S.selected()) do
    it(S.title(op), function()
      assert.is_true(#op.errors >= 3, "three error inputs are needed")
      for i, e in ipairs(op.errors) do
        records.case(("%s error %d (%s)"):format(op.name, i, e[1]), function()
          local ok, args = pcall(S.evaluate, e[1], { dtype = "float32" })
          if not ok then error("the input itself fails: " .. args, 0) end
          local success, message = call(op.name, args)
          if success then error("no error; expected " .. e[2], 0) end
          if type(message) ~= "string" then error("the error is a " .. type(message), 0) end
          if not matches(message, e[2]) then error(("'%s' does not match '%s'"):format(message, e[2]), 0) end
          if not position(message) then error("no position: " .. message, 0) end
        end)
      end
      records.check()
      if S.device ~= "cpu" then return end -- what follows ends before any device is asked

      -- each argument in turn replaced by what it cannot be
      local base = op.samples[1] and S.evaluate(op.samples[1], { dtype = "float32" }) or { n = 0 }
      if S.is_options(base[base.n]) then
        base[base.n] = nil
        base.n = base.n - 1
      end
      local names = { op.name }
      if op.inplace then names[2] = op.name .. "_" end
      for _, name in ipairs(names) do
        local place = 0
        for _, a in ipairs(op.args) do
          if a.type ~= "INDEX_BASE" then
            place = place + 1
            if place > base.n + 1 then break end
            local list = bad_values()
            for _, bad in ipairs(list) do
              local where = ("%s(%s = %s)"):format(name, a.name, bad[1])
              garbage.case(where, function()
                local args = { n = math.max(base.n, place) }
                for k = 1, args.n do args[k] = base[k] end
                args[place] = bad[2]
                local ok, message = call(name, args)
                local last = place == args.n and bad.keywords
                if ok and not bad[a.type] and not last then error("was accepted", 0) end
                if not ok and (type(message) ~= "string" or not position(message)) then
                  error("no position: " .. tostring(message), 0)
                end
              end)
            end
            -- nil where something is needed
            if not a.optional and not a.default and not (op.factory and a.type == "INTS") then
              garbage.case(("%s(%s = nil)"):format(name, a.name), function()
                local args = { n = math.max(base.n, place) }
                for k = 1, args.n do args[k] = base[k] end
                args[place] = nil
                if call(name, args) then error("was accepted", 0) end
              end)
            end
          end
        end
        garbage.case(name .. " with too many arguments", function()
          local args = { n = 40 }
          for k = 1, 40 do args[k] = base[k] or ops.zeros({ 1 }) end
          if call(name, args) then error("was accepted", 0) end
        end)
        garbage.case(name .. " without arguments", function() call(name, { n = 0 }) end)
        for _, bad in ipairs(bad_values()) do
          garbage.case(name .. " of " .. bad[1] .. " only", function() call(name, { n = 1, bad[2] }) end)
          garbage.case(name .. " with out = " .. bad[1], function()
            local args = { n = base.n + 1, unpack(base, 1, base.n) }
            args[args.n] = { out = bad[2] }
            local ok, message = call(name, args)
            if ok then error("was accepted", 0) end
            if not position(message) then error("no position: " .. message, 0) end
          end)
        end
      end
      garbage.check()
    end)
  end

  it("ran", function()
    io.write(("  %d error inputs, %d calls with garbage\n"):format(records.total, garbage.total))
    assert.is_true(records.total > 0 and (garbage.total > 0 or S.device ~= "cpu"))
  end)
end)
