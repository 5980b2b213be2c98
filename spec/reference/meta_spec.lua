-- Definition files for lua-language-server, and what they say: LuaLS itself is not asked.
local moth = require "moth"
local files = require("moth.reference.meta").files()

local all, names = {}, {}
for name, text in pairs(files) do
  names[#names + 1] = name
  all[#all + 1] = text
end
table.sort(names)
all = table.concat(all, "\n")

-- file -> what is declared in it -> how often: "M.relu" (a function), ".Linear" (a field)
local declared = {}
for file, text in pairs(files) do
  local of = {}
  declared[file] = of
  local function add(what) of[what] = (of[what] or 0) + 1 end
  for line in text:gmatch "[^\n]+" do
    local where, name = line:match "^function (%u[.:])([%w_]+)%("
    if not where then where, name = line:match '^(%u)%["([%w_]+)"%] = function%(' end
    local field = line:match "^%-%-%-@field ([%w_]+) " or line:match '^%-%-%-@field %["([%w_]+)"%] '
    if where then add(where:sub(1, 1) .. "." .. name) elseif field then add("." .. field) end
  end
end

describe("definition files", function()
  it("are Lua", function()
    for _, name in ipairs(names) do
      assert(loadstring(files[name], "=" .. name))
      assert.matches("^%-%-%-@meta moth[%w_.]*\n", files[name])
    end
    assert.is_true(#names > 50)
  end)

  it("have every public function and class once", function()
    local functions, classes = require "lua.surface" {}
    local file_of = {}
    for file, text in pairs(files) do file_of[text:match "^%-%-%-@meta (%S+)"] = file end
    -- The name of the module of a path of the walk, which may go by another name, as F for nn.functional.
    local function module_of(path)
      local value = moth
      for part in path:gmatch "[^.]+" do value = value[part] end
      return getmetatable(value).__module_name or "moth"
    end
    local wrong, n = {}, 0
    local function check(path)
      local parent, last = path:match "^(.*)%.([^.]+)$"
      local file = file_of[module_of(parent or "")]
      last = last or path
      local found = (declared[file]["M." .. last] or 0) + (declared[file]["." .. last] or 0)
      n = n + 1
      if found ~= 1 then wrong[#wrong + 1] = ("%s: %d times"):format(path, found) end
    end
    for path in pairs(functions) do check(path) end
    for path in pairs(classes) do if not functions[path] then check(path) end end
    table.sort(wrong)
    assert.same({}, wrong)
    assert.is_true(n > 1500, n)
    for name in pairs(require("moth.tensor").methods) do
      if name:find "^%a" then
        assert.equal(1, declared["moth/Tensor.lua"]["T." .. name], name)
      end
    end
  end)

  it("define every type that they name, once", function()
    local defined = {}
    all = all:gsub("(%-%-%-@class )%(exact%) ", "%1")
    for name in ("\n" .. all):gmatch "\n%-%-%-@class ([%w_.]+)" do
      assert.is_nil(defined[name], name .. " is defined twice")
      defined[name] = true
    end
    local wrong = {}
    for line in all:gmatch "%-%-%-@%a+[^\n]*" do
      local text = line:gsub('"[^"]*"', "")
      if not text:find "^%-%-%-@meta" then
        for name in text:gmatch "%f[%w_]moth[%w_]*%.[%w_.]*[%w_]" do
          if not defined[name] then wrong[#wrong + 1] = name end
        end
      end
    end
    assert.same({}, wrong)
  end)

  it("know what methods of tensors return", function()
    local x = moth.ones(2, 2)
    local methods, n = require("moth.tensor").methods, 0
    local calls = { {}, { x }, { 1 }, { 2, 1 }, { { 2 }, 1 }, { x:long() } }
    for kind, list in pairs(require("moth.reference.meta").returns) do
      for name in list:gmatch "%S+" do
        assert.is_function(methods[name], name)
        for _, call in ipairs(name == "cuda" and {} or calls) do
          local r = { pcall(methods[name], name == "item" and moth.ones(1) or x:clone(), unpack(call)) }
          if r[1] and r[2] ~= nil then
            local v = r[2]
            local is = moth.is_tensor(v) and "moth.Tensor" or moth.is_dtype(v) and "moth.dtype" or type(v)
            if is == "userdata" then is = "moth.device" end
            if is == "number" and kind == "integer" and v % 1 == 0 then is = "integer" end
            if kind == "moth.Tensor[]" and is == "table" and moth.is_tensor(v[1]) then is = kind end
            assert.equal(kind, is, name)
            n = n + 1
            break
          end
        end
      end
    end
    assert.is_true(n > 85, n .. " were called")
  end)

  it("say types, options, defaults' absence and docs", function()
    local nn = files["moth/nn.lua"]
    for _, line in ipairs { "---@class moth.nn.Linear: moth.nn.Module", "---@class (exact) moth.nn.Linear.options",
      "---@field Linear moth.nn.Linear.Class" } do
      assert.matches("\n" .. line .. "\n", nn, 1, true)
    end
    assert.matches("@overload fun(in_features: integer, out_features: integer, bias?: boolean|moth.nn.Linear.options",
      nn, 1, true)
    local tensor = files["moth/Tensor.lua"]
    assert.matches("---@return moth.Tensor\n---@return moth.Tensor\nfunction T:topk(k, dim, largest, sorted, options) "
      .. "end", tensor, 1, true)
    assert.matches("---@field float32 moth.dtype\n", files["moth.lua"], 1, true)
    assert.matches("---@return moth.Tensor\nfunction T:absolute() end", tensor, 1, true)
    assert.matches("---@overload fun(...: integer): moth.Tensor\n"
      .. "---@overload fun(options: moth.zeros.options): moth.Tensor\n", files["moth.lua"], 1, true)
    assert.matches("---@type moth\nmoth = {}", files["moth/globals.lua"], 1, true)
  end)
end)
