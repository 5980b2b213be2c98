-- The examples of src/ops/examples.lua: each runs and prints what it says.
local moth = require "moth"
local B = require "moth_lua"

local function printed(...)
  local parts = {}
  for i = 1, select("#", ...) do
    local v = (select(i, ...))
    parts[i] = B.is_tensor(v) and tostring(v):gsub("\n%[moth%.[^\n]*$", "") or tostring(v)
  end
  return table.concat(parts, "\n")
end

describe("the example of an op", function()
  it("prints what it says, for every op that users call", function()
    local wrong, seen = {}, 0
    for _, name in ipairs(moth.ops.list()) do
      local op = moth.ops.get(name)
      if op.example then
        seen = seen + 1
        moth.manual_seed(0)
        local code, said = op.example[1], op.example[2]
        local chunk = setfenv(assert(loadstring("return " .. code) or loadstring(code)),
          setmetatable({ moth = moth }, { __index = _G }))
        local ok, out = pcall(function() return printed(chunk()) end)
        if not ok or out ~= said then wrong[#wrong + 1] = ("%s: %s\n  not %s"):format(name, tostring(out), said) end
        local own = name:gsub("^linalg_", ""):gsub("^special_", "")
        assert.is_truthy(code:find("[.:]" .. own .. "%f[^%w_]"), name .. ": its example calls something else")
      else
        assert.is_true(op.internal, name .. " has no example")
      end
    end
    assert.equal("", table.concat(wrong, "\n"))
    assert.is_true(seen > 350, seen .. " examples")
  end)

  it("is demanded by the build", function()
    local dir = os.tmpname()
    os.remove(dir)
    os.execute(("mkdir -p %s/src && cp -r src/ops %s/src/ && ln -s $PWD/kernels $PWD/lua %s/ && for d in src/*; do \z
      [ $d = src/ops ] || ln -s $PWD/$d %s/src/; done"):format(dir, dir, dir, dir))
    local function replaced(from, to)
      local f = assert(io.open(dir .. "/src/ops/examples.lua"))
      local text = f:read("*a")
      f:close()
      local changed, n = text:gsub(from, to)
      assert.equal(1, n)
      f = assert(io.open(dir .. "/src/ops/examples.lua", "w"))
      f:write(changed)
      f:close()
      local pipe = io.popen(("cd %s && mkdir -p out && %s src/ops/gen.lua out 2>&1"):format(dir,
        os.getenv("LUAJIT") or "luajit"))
      local said = pipe:read("*a")
      pipe:close()
      return said
    end
    assert.matches("src/ops/examples.lua: rleu: there is no such op", replaced("\n  relu = ", "\n  rleu = "))
    assert.matches("src/ops/examples.lua: rleu: there is no such op",
      replaced("\n  rleu = ([^\n]*)", "\n  relu = %1\n  rleu = %1"))
    os.execute("rm -rf " .. dir)
  end)
end)
