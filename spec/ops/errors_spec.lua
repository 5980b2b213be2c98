-- Error inputs of every op: those of its record; those that follow from its schema (wrong kinds, missing arguments,
-- shapes that do not broadcast), whose messages must name op and argument; and garbage: never a crash.
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

--- The error of a call with a wrong argument: it says where, which op, which argument.
local function check_named(op, a, before, ok, message)
  if ok then error("was accepted", 0) end
  if type(message) ~= "string" or not position(message) then error("no position: " .. tostring(message), 0) end
  local function named(x) return x and message:find("'" .. x.name .. "'", 1, true) end
  -- a number after a list of plain numbers belongs to the list
  local list = before and (before.type == "INTS" or before.type == "DIMS") and before
  if not (message:find("[" .. op.name, 1, true) and (named(a) or named(list))) then
    error(("does not name [%s] and '%s': %s"):format(op.name, a.name, message), 0)
  end
end

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
      local before = records.known
      for i, e in ipairs(op.errors) do
        records.case(("%s error %d (%s)"):format(op.name, i, e[1]), function()
          local ok, args = pcall(S.evaluate, e[1], { dtype = "float32" })
          if not ok then error("the input itself fails: " .. args, 0) end
          local success, message = call(op.name, args)
          if success then error("no error; expected " .. e[2], 0) end
          if type(message) ~= "string" then error("the error is a " .. type(message), 0) end
          if not matches(message, e[2]) then error(("'%s' does not match '%s'"):format(message, e[2]), 0) end
          if not position(message) then error("no position: " .. message, 0) end
          -- of composites, too: the name of the call, not of a part
          if not message:find("^[^:\n]+:%d+: %[" .. op.name .. "%] ") then error("names another op: " .. message, 0) end
        end)
      end
      if S.device ~= "cpu" then return records.check() end -- what follows ends before any device is asked

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
        for at, a in ipairs(op.args) do
          if a.type ~= "INDEX_BASE" then
            place = place + 1
            if place > base.n + 1 then break end
            local list = bad_values()
            for _, bad in ipairs(list) do
              local where = ("%s(%s = %s)"):format(name, a.name, bad[1])
              local args = { n = math.max(base.n, place) }
              for k = 1, args.n do args[k] = base[k] end
              args[place] = bad[2]
              local options = type(bad[2]) == "table" and #bad[2] == 0 and place == args.n
              if bad[a.type] or options then -- may fit; if it does not, the message has a place
                garbage.case(where, function()
                  local ok, message = call(name, args)
                  if not ok and (type(message) ~= "string" or not position(message)) then
                    error("no position: " .. tostring(message), 0)
                  end
                end)
              else
                records.case(where, function() check_named(op, a, op.args[at - 1], call(name, args)) end)
              end
            end
            -- nil where something is needed
            if not a.optional and not a.default and not (op.factory and a.type == "INTS") then
              records.case(("%s(%s = nil)"):format(name, a.name), function()
                local args = { n = math.max(base.n, place) }
                for k = 1, args.n do args[k] = base[k] end
                args[place] = nil
                check_named(op, a, op.args[at - 1], call(name, args))
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
      local operands = 0
      for _, a in ipairs(op.args) do
        if a.type == "TENSOR" or a.type == "OPERAND" then operands = operands + 1 end
      end
      if op.kind == "pointwise" and operands > 1 then
        records.case(op.name .. " of shapes that do not broadcast", function()
          local args, shapes = { n = base.n }, { { 2, 3 }, { 4 } }
          for k = 1, base.n do args[k] = base[k] end
          for k = 1, operands do -- in the sample's dtype: conditions are masks
            local dtype = B.is_tensor(base[k]) and B.tensor_dtype(base[k]) or B.dtype("float32")
            args[k] = ops.zeros(shapes[k] or { 1 }, { dtype = dtype })
          end
          local ok, message = call(op.name, args)
          if ok or not message:find("%[2, 3%].*%[4%].*cannot be broadcast") and not message:find("broadcast") then
            error("expected an error of broadcasting, got " .. tostring(message), 0)
          end
        end)
      end
      assert.is_true(records.known >= before + 3, "three error inputs are needed")
      records.check()
      garbage.check()
    end)
  end

  it("ran", function()
    io.write(("  %d error inputs, %d calls with garbage\n"):format(records.total, garbage.total))
    assert.is_true(records.total > 0 and (garbage.total > 0 or S.device ~= "cpu"))
  end)
end)
