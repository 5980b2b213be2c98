-- The Lua code of docs/ and the README is run: each ```lua block by itself, with the expected output of its prints
-- written behind them (`print(x) --> 3`; several lines one under the other), and each piece of code in the column
-- "moth" of a table. A block of the README may be an expression, such as a record of an op.
local moth = require "moth"
local nn, optim, data = moth.nn, moth.optim, moth.data

local pages = { "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md" }
do
  local pipe = io.popen("ls docs/*.md")
  for path in pipe:lines() do pages[#pages + 1] = path end
  pipe:close()
end

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("*a")
  f:close()
  return text
end

local saved = os.tmpname()

-- Names that code on a page may use without a definition.
local function environment(print)
  moth.manual_seed(0)
  local model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
  local env = {
    moth = moth, nn = nn, optim = optim, data = data, F = nn.functional, print = print,
    x = moth.randn(3, 4), y = moth.randn(3, 4), m = moth.randn(4, 5), v = moth.rand(4), a = moth.ones(2, 3, 4),
    i = moth.tensor({ 1, 3 }, { dtype = moth.int64 }), labels = moth.tensor({ 2, 1, 3 }, { dtype = moth.int64 }),
    w = moth.randn(4, { requires_grad = true }), model = model, p = model[1].weight,
    opt = optim.SGD(model:parameters(), { lr = 0.1 }),
    dataset = data.TensorDataset(moth.randn(6, 4), moth.arange(6)), path = saved,
  }
  env.loss = model(env.x):sum()
  -- What an error says, without its place, and without what was given.
  function env.message(f, ...)
    local ok, why = pcall(f, ...)
    if ok then error("there is no error", 2) end
    return (why:gsub("^%S+:%d+: ", ""):gsub("; got .*$", ""))
  end
  return setmetatable(env, { __index = _G })
end

local function run(code, name)
  local printed = {}
  local env = environment(function(...)
    local parts = {}
    for k = 1, select("#", ...) do parts[k] = tostring((select(k, ...))) end
    for line in (table.concat(parts, " ") .. "\n"):gmatch(" *(.-)\n") do printed[#printed + 1] = line end
  end)
  local chunk, message = loadstring(code, "=" .. name)
  chunk = chunk or loadstring("return " .. code, "=" .. name)
  assert(chunk, message)
  setfenv(chunk, env)
  chunk()
  return printed
end

-- { { line, code }, … }
local function blocks(text)
  local out, at, lines = {}, nil, nil
  local n = 0
  for line in (text .. "\n"):gmatch("(.-)\n") do
    n = n + 1
    if line == "```lua" then
      at, lines = n, {}
    elseif line == "```" and lines then
      out[#out + 1], lines = { at, table.concat(lines, "\n") }, nil
    elseif lines then
      lines[#lines + 1] = line
    end
  end
  return out
end

-- The code in the last column of the tables whose last column is called moth: { { line, code }, … }
local function cells(text)
  local out, n, inside = {}, 0, false
  for line in (text .. "\n"):gmatch("(.-)\n") do
    n = n + 1
    local last = line:match("^|.*|%s*(.-)%s*|$")
    if not last then inside = false
    elseif last == "moth" then inside = true
    elseif inside then
      for code in last:gmatch("`([^`]+)`") do out[#out + 1] = { n, code } end
    end
  end
  return out
end

-- An expression, or statements.
local function as_chunk(code) return loadstring("return " .. code) and "local _ = " .. code or code end

-- Pages without code.
local prose = { ["docs/environment.md"] = true, ["docs/threads.md"] = true, ["docs/source_tour.md"] = true,
  ["docs/advice.md"] = true, ["docs/index.md"] = true, ["CONTRIBUTING.md"] = true,
  ["CHANGELOG.md"] = true, ["SECURITY.md"] = true }

local shows = { ["docs/phase00.md"] = " #M515", ["docs/pitfalls.md"] = " #M506", ["docs/debugging.md"] = " #M463",
  ["docs/phase01.md"] = " #M503", ["docs/advice.md"] = " #M507", ["CONTRIBUTING.md"] = " #M499",
  ["docs/onnx.md"] = " #M427", ["docs/parallel.md"] = " #M401", ["docs/deploy.md"] = " #M421" }

describe("documentation #M057", function()
  lazy_setup(function() moth.save({ weight = moth.ones(2) }, saved) end)
  lazy_teardown(function()
    os.remove(saved)
    os.remove(saved .. ".npy")
  end)

  for _, path in ipairs(pages) do
    local text = read(path)
    local found_blocks, found_cells = blocks(text), cells(text)
    if not prose[path] then
      it(path .. " has something to run", function() assert.is_true(#found_blocks + #found_cells > 0) end)
    end
    if #found_blocks > 0 then
      it(path .. ": the blocks run and print what they say" .. (shows[path] or ""), function()
        for _, block in ipairs(found_blocks) do
          local expected = {}
          for said in block[2]:gmatch("%-%-> ([^\n]*)") do expected[#expected + 1] = said end
          local printed = run(("\n"):rep(block[1]) .. block[2], path)
          if #expected > 0 then assert.same(expected, printed, ("%s:%d"):format(path, block[1])) end
        end
      end)
    end
    if #found_cells > 0 then
      it(path .. ": every spelling in its tables is one", function()
        for _, cell in ipairs(found_cells) do run(("\n"):rep(cell[1] - 1) .. as_chunk(cell[2]), path) end
      end)
    end

    it(path .. ": its links lead somewhere" .. (shows[path] or ""), function()
      local folder = path:match("^(.*/)") or ""
      for target in text:gmatch("%]%(([^)#:]+)[#)]") do
        local f = io.open(folder .. target)
        assert.is_truthy(f, path .. ": " .. target)
        f:close()
      end
    end)
  end

  it("the source tour leads to lines that have what it says #M498 #M514", function()
    local wrong, _, count = require("tour").check()
    assert.equal("", table.concat(wrong, "\n"))
    assert.is_true(count >= 14)
  end)

  it("what the README says is not there is not", function()
    for name in ([[
      sparse_csc_tensor
    ]]):gmatch("%S+") do
      local found = moth
      for key in name:gmatch("[^.]+") do
        local ok, value = pcall(function() return found[key] end)
        found = ok and value or nil
      end
      assert.is_nil(found, name .. " is there now: say so in the README")
    end
  end)

  it("the index leads to every page", function()
    local text = read "docs/index.md"
    for _, path in ipairs(pages) do
      local name = path:match("^docs/(.*)")
      if name and name ~= "index.md" then
        assert.is_truthy(text:find("](" .. name .. ")", 1, true), "docs/index.md does not lead to " .. name)
      end
    end
  end)

  it("the guide to ops of one's own gives four reasons, each with an example that runs #M135", function()
    local reasons = 0
    for _, reason in ipairs { "An op is missing", "only move memory can be one", "numerics are to be others",
      "An idea is to be tried" } do
      local part = read("docs/custom_ops.md"):match("%*%*[^\n]*" .. reason .. "(.-)\n%*%*")
        or read("docs/custom_ops.md"):match("%*%*[^\n]*" .. reason .. "(.*)$")
      assert.matches("\n```lua\n.-define.-%-%-> .-```", part)
      reasons = reasons + 1
    end
    assert.equal(4, reasons)
  end)

  it("the index of the examples has every one", function()
    local text = read "docs/examples.md"
    local pipe = io.popen("ls examples/*.lua examples/*/*.c")
    for path in pipe:lines() do assert.is_truthy(text:find("(../" .. path .. ")", 1, true), path) end
    pipe:close()
  end)
end)
