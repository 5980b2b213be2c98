-- Arguments by name: every op takes the arguments of its samples by name as well, and every error of its
-- record carries the name that was called; functions of Lua know each of their arguments by name.
local moth = require "moth"
local signature = require "moth.utils.signature"
local S = require "ops.support"

local function pack(...) return { n = select("#", ...), ... } end

local function text(results)
  local out = {}
  for i = 1, results.n do out[i] = tostring(results[i]) end
  return table.concat(out, "|")
end

-- The arguments of a sample as one table of names.
local function named(op, args)
  local out, names, n = {}, {}, args.n
  for _, a in ipairs(op.args) do if a.type ~= "INDEX_BASE" then names[#names + 1] = a.name end end
  local last = args[n]
  if type(last) == "table" and #last == 0 and next(last) ~= nil then
    for key, value in pairs(last) do out[key] = value end
    n = n - 1
  end
  for i = 1, n do out[names[i]] = args[i] end
  return out
end

describe("arguments by name", function()
  local function each_call(field, visit)
    local calls = 0
    for _, name in ipairs(moth.ops.list()) do
      local op, fn = moth.ops.get(name), rawget(moth, name)
      if not op.internal and fn and not signature.of(fn) then
        for _, sample in ipairs(op[field] or {}) do
          local source = type(sample) == "table" and sample[1] or sample
          moth.manual_seed(1)
          local ok, args = pcall(S.evaluate, source)
          if ok then
            calls = calls + 1
            visit(op, fn, args, source)
          end
        end
      end
    end
    return calls
  end

  it("are the same call, for every op", function()
    local wrong = {}
    local calls = each_call("samples", function(op, fn, args, source)
      if op.returns_self or op.name:find("^empty") then return end
      moth.manual_seed(2)
      local ok, want = pcall(function() return pack(fn(unpack(args, 1, args.n))) end)
      if not ok then return end
      moth.manual_seed(2)
      local good, got = pcall(function() return pack(fn(named(op, args))) end)
      if not good or text(got) ~= text(want) then
        wrong[#wrong + 1] = ("%s(%s): %s"):format(op.name, source, good and "another result" or tostring(got))
      end
    end)
    assert.equal("", table.concat(wrong, "\n"))
    assert.is_true(calls > 600, calls .. " calls")
  end)

  it("are what errors speak of, under the name that was called", function()
    local wrong = {}
    local calls = each_call("errors", function(op, fn, args, source)
      local ok, message = pcall(fn, unpack(args, 1, args.n))
      local said = not ok and tostring(message):match("%[([%w_.:]+)%]")
      if not ok and said ~= op.name then
        wrong[#wrong + 1] = ("%s(%s): %s"):format(op.name, source, tostring(message):match("^[^\n]*"))
      end
    end)
    assert.equal("", table.concat(wrong, "\n"))
    assert.is_true(calls > 300, calls .. " calls")
  end)

  it("are known to functions of Lua", function()
    local wrong, seen, asked = {}, {}, 0
    local function look(value, depth)
      if seen[value] then return end
      seen[value] = true
      local signed = type(value) == "function" and signature.of(value)
      if signed and not signed:find("...", 1, true) then
        local name, parameters = signature.parameters(signed)
        local first = parameters[1] and parameters[1].type or "any" -- may the table be that argument?
        local takes_table = first:find("any") or first:find("table") or first:find("list") or first:find("callable")
        for _, p in ipairs(takes_table and {} or parameters) do
          if p.type ~= "any" then
            asked = asked + 1
            local ok, message = pcall(value, { [p.name] = io.stdout })
            if ok or not message:find(name, 1, true) or not message:find("'" .. p.name .. "'", 1, true) then
              wrong[#wrong + 1] = ("%s{ %s = … }: %s"):format(name, p.name, ok and "no error" or message)
            end
          end
        end
      end
      local mt = type(value) == "table" and getmetatable(value)
      if mt and rawget(mt, "__module_name") and depth < 4 then
        for _, field in ipairs(require("moth.reference.entry").fields(value)) do look(value[field], depth + 1) end
      end
    end
    look(moth, 1)
    assert.equal("", table.concat(wrong, "\n"))
    assert.is_true(asked > 500, asked .. " arguments")
  end)
end)
