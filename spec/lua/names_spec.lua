-- Names that are not there: errors that say which one may have been meant.
local moth = require "moth"

local function fails(pattern, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
  assert.matches("names_spec%.lua:%d+:", message)
end

local function get(t, k) return t[k] end

describe("an unknown name", function()
  it("of a module is an error with a suggestion", function()
    fails("moth has no 'flaot64'; did you mean 'float64'%?", get, moth, "flaot64")
    fails("moth.nn has no 'Liner'; did you mean 'Linear'%?", get, moth.nn, "Liner")
    fails("moth.utils has no 'dta'; did you mean 'data'%?", get, moth.utils, "dta")
    assert.equal(moth.data, moth.utils.data)
    fails("moth.optim has no 'Adma'; did you mean 'Adam'%?", get, moth.optim, "Adma")
    fails("moth.optim.lr_scheduler has no 'StepRL'; did you mean 'StepLR'%?", get, moth.optim.lr_scheduler, "StepRL")
    fails("moth.nn.functional has no 'rleu'; did you mean 'relu'%?", get, moth.F, "rleu")
    fails("moth.cuda has no 'is_avaliable'; did you mean 'is_available'%?", get, moth.cuda, "is_avaliable")
    fails("moth.memory has no 'stat'; did you mean 'stats'%?", get, moth.memory, "stat")
    fails("moth.autograd has no 'gard'; did you mean 'grad'%?", get, moth.autograd, "gard")
    fails("moth.ops.moth has no 'rleu'; did you mean 'relu'%?", get, moth.ops.moth, "rleu")
    fails("moth has no 'xyzzy'$", get, moth, "xyzzy")
  end)

  it("is one in every module", function()
    local function visit(module, name, seen)
      if seen[module] then return end
      seen[module] = true
      local ok, message = pcall(get, module, "no_such_name_at_all")
      assert.is_false(ok, name .. " gives nil")
      assert.matches("no_such_name_at_all", message)
      assert.is_nil(rawget(module, "no_such_name_at_all"))
      assert.is_nil(module.__no_such_name)
      for k in pairs(module) do
        local v = rawget(module, k)
        local mt = type(v) == "table" and getmetatable(v)
        if mt and rawget(mt, "__module_name") then visit(v, name .. "." .. k, seen) end
      end
    end
    local modules = 0
    for _, name in ipairs(getmetatable(moth).__names()) do
      local v = moth[name]
      if type(v) == "table" and not moth.class.name(v):find("^%u") then
        modules = modules + 1
        if getmetatable(v) == nil or rawget(getmetatable(v), "__module_name") == nil then
          assert.is_true(name == "class" or name == "backends", name .. " is no strict module")
        else
          visit(v, name, {})
        end
      end
    end
    assert.is_true(modules > 15)
  end)

  it("of a tensor is, too", function()
    local x = moth.zeros(2)
    fails("no method or field 'flaot'; did you mean 'float'%?", get, x, "flaot")
    fails("a dtype has no field 'itemsze'; there are name, itemsize", get, moth.float32, "itemsze")
    fails("a device has no field 'typ'; there are type, index", get, moth.device("cpu"), "typ")
    assert.is_nil(moth.float32.__no)
    fails("no method or field 'permutate'; did you mean 'permute'%?", function() return x:permutate(1) end)
  end)
end)

describe("internal ops", function()
  local B = require "moth_lua"

  it("are objects of moth.ops.moth alone", function()
    local n = 0
    for name in pairs(B.internal) do
      n = n + 1
      assert.is_nil(rawget(moth, name), name)
      assert.is_nil(rawget(require("moth.tensor").methods, name), name)
      assert.is_function(B.ops[name])
      assert.is_true(moth.ops.get(name).internal)
      assert.truthy(moth.ops.moth[name].schema:find(name, 1, true))
    end
    for _, name in ipairs({ "adam_step", "sgd_step", "native_layer_norm", "sigmoid_backward", "attention_forward" }) do
      assert.is_true(B.internal[name], name)
    end
    assert.is_true(n > 30)
    assert.error_matches(function() return moth.adam_step end, "no 'adam_step'")
    assert.error_matches(function() return moth.ones(1):sigmoid_backward(moth.ones(1)) end, "no method")
    local y = moth.full({ 2 }, 0.5)
    assert.same({ 0.25, 0.25 }, moth.ops.moth.sigmoid_backward(moth.ones(2), y):tolist())
  end)

  it("are all that look like parts", function()
    for _, name in ipairs(moth.ops.list()) do
      local part = name:find("_backward") or name:find("^native_") or name:find("_step$") or name:find("_double")
      if part then assert.is_true(B.internal[name], name) end
    end
  end)
end)

describe("paths of modules", function()
  it("are their names, wherever their files lie", function()
    for name in ([[nn models optim data datasets transforms utils fmt ops dispatch library testing class tensorboard
      plot func tree interop bench backends cuda capi autograd json]]):gmatch("%a+") do
      assert.equal(moth[name], require("moth." .. name), name)
    end
    assert.is_function(require("moth.trace").traceback)
    assert.is_function(require "moth.each")
  end)

  it("can be required before moth", function()
    local luajit = os.getenv("LUAJIT") or "luajit"
    local pipe = assert(io.popen(([[
      names=$(cd lua/moth && find . -name '*.lua' | sed 's|^[.]/||; s|[.]lua$||; s|/init$||')
      for n in $names backends bench cpp_extension cpu fmt func gradcheck interop json ops \
        testing trace transforms tree; do
        %s -e "
          local ok, e = pcall(require, 'moth.' .. ('$n'):gsub('/', '.'))
          if not ok then print('$n', e) end" 2>&1
      done
      echo end]]):format(luajit)))
    assert.equal("end\n", pipe:read("*a"))
    pipe:close()
    pipe = assert(io.popen(luajit .. [[ -e 'print(require("moth.func") == require("moth").func)' 2>&1]]))
    assert.equal("true\n", pipe:read("*a"))
    pipe:close()
  end)

  it("hold nothing but folders and what is required by itself", function()
    local files = {}
    for file in assert(io.popen("ls -p lua/moth")):lines() do
      if not file:find("/$") then files[#files + 1] = file end
    end
    assert.same({ "class.lua", "each.lua", "init.lua" }, files)
  end)
end)
