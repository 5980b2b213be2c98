-- Errors of names that are not there: methods of objects, Torch7's names, fields of tensors, methods called with a dot.
local moth = require "moth"
local class = require "moth.class"
local fails = require "fails"
local child = require "child"
local each = require "moth.each"
local nn = moth.nn

describe("an unknown method", function()
  local function says(pattern, object, code)
    local f = assert(loadstring("local o = ... local r = " .. code .. " return r", "=user"))
    fails("^user:1: " .. pattern, f, object)
  end
  it("of a module names its class and what was meant", function()
    says("Linear has no method 'parametres'; did you mean 'parameters'%?$", nn.Linear(1, 1), "o:parametres()")
    says("Sequential has no method 'evall'; did you mean 'eval'%?$", nn.Sequential(nn.ReLU()), "o:evall()")
    says("ModuleList has no method 'frobnicate'$", nn.ModuleList(), "o:frobnicate(1, 2)")
  end)
  it("of all other objects, too", function()
    local opt = moth.optim.SGD(nn.Linear(1, 1):parameters(), { lr = 1 })
    says("SGD has no method 'stepp'; did you mean 'step'%?$", opt, "o:stepp()")
    says("StepLR has no method 'setp'; did you mean 'step'%?$", moth.optim.lr_scheduler.StepLR(opt, 2), "o:setp()")
    says("Normal has no method 'logprob'; did you mean 'log_prob'%?$", moth.distributions.Normal(0, 1), "o:logprob(1)")
    local set = moth.data.TensorDataset(moth.ones(3)) -- a userdata
    says("TensorDataset has no method 'gett'; did you mean 'get'%?$", set, "o:gett(1)")
    says("DataLoader has no method 'itr'; did you mean 'iter'%?$", moth.data.DataLoader(set), "o:itr()")
  end)
  it("is told again and again", function()
    local lin = nn.Linear(1, 1)
    for _ = 1, 9 do says("Linear has no method 'toldagain'", lin, "o:toldagain()") end
  end)
  it("of an object that is of no class is a hint of the launcher", function()
    local function ends(code) return (child(code)) end
    assert.matches("'kees' %(a nil value%); did you mean 'keys'%?",
      ends "local sd = moth.nn.Linear(1, 1):state_dict() print(1, sd:kees())")
    assert.matches("'get_stat' %(a nil value%); did you mean 'get_state'%?", ends "moth.Generator(1):get_stat()")
  end)
  it("of a class of the user's, in a line with other calls", function()
    local Point = class "Point"
    function Point.norm() return 1 end
    says("Point has no method 'nrom'; did you mean 'norm'%?$", Point(), "o:norm() + o:nrom()")
    local Net = nn.class "HintNet"
    function Net:forward(x) return self:embed(x) end
    fails("hints_spec.lua:%d+: HintNet has no method 'embed'; in HintNet$", Net(), moth.ones(1))
  end)
  it("leaves fields that are read alone", function()
    local lin = nn.Linear(1, 1, false)
    assert.is_nil(lin.bias)
    assert.is_nil(lin.parametres)
    local Point = class "Point"
    assert.is_nil(Point().nrom)
    for _ = 1, 5 do assert.is_nil(Point().other) end
    assert.is_false(pcall(function() return Point().other() end))
  end)
end)

describe("Torch7's names lead to moth's", function()
  it("of layers, losses and optimizers", function()
    fails("moth.nn has no 'SpatialConvolution'; .* nn.Conv2d here", function() return nn.SpatialConvolution(1, 1) end)
    fails("nn.NLLLoss here", function() return nn.ClassNLLCriterion() end)
    fails("optim.SGD%(model:parameters%(%), { lr = … }%), then loss:backward%(%) and opt:step%(%) here",
      function() return moth.optim.sgd(function() end, moth.ones(1), {}) end)
    fails("has no method 'add'; Torch7's 'add' is append", function() nn.Sequential():add(nn.Tanh()) end)
  end)
  it("of methods", function()
    fails("is zero_grad here %(docs/from%-torch7.md%)", function() nn.Linear(1, 1):zeroGradParameters() end)
    fails("is numel here", function() return moth.ones(1):nElement() end)
  end)
  it("of packages and globals, and of what is here but no function", function()
    for code, what in each { ["torch.zeros(2)"] = "'torch' is moth here", ["nn.Linear(2, 2)"] = "'nn' is moth.nn here",
      ["print(xlua.progress)"] = "'xlua' is moth.utils.progress here",
      ["moth.Tensor(3)"] = "is moth.tensor %(of values%)",
      ["moth.nn.Linear(2, 2):training()"] = "'training' is train here" } do
      local ok, message = xpcall(setfenv(loadstring(code), { moth = moth, print = print }),
        function(message) return message .. require("moth.lang.hints").of(message) end)
      assert.is_false(ok)
      assert.matches(what, message)
    end
    local _, message = xpcall(function() local t = { get = nil } return t:get() end,
      function(message) return message .. require("moth.lang.hints").of(message) end)
    assert.is_nil(message:find("Torch7's 'Tensor'", 1, true))
    for _, name in ipairs { "torch", "nn", "optim", "image", "cunn", "paths" } do
      fails("Torch7's '" .. name .. "' is ", function() require(name) end)
    end
  end)
  it("names only what is there", function()
    for old, new in each(require "moth.lang.torch7") do
      for name in new:gmatch "nn%.(%u%w+)" do assert(nn[name], old) end
      for name in new:gmatch "optim%.(%u%w+)" do assert(moth.optim[name], old) end
      for path in new:gmatch "moth%.([%l_][%w_.]*%w)" do
        local value = moth
        for part in path:gmatch "[^.]+" do value = value[part] end -- another name is an error
        assert(value ~= nil, old)
      end
      for name in new:gmatch "x:([%l_]+)" do assert(moth.ones(1)[name], old) end
      if new:find "^[%l_]+$" then assert(nn.Module[new] or moth.ones(1)[new], old) end
    end
  end)
end)

describe("fields of a tensor that cannot be assigned", function()
  it("say what to write", function()
    local x = moth.ones(1)
    fails("'requires_grad' cannot be assigned; write x:requires_grad_", function() x.requires_grad = false end)
    fails("'shape' cannot be assigned; a shape is changed by x:view", function() moth.ones(1).shape = { 1 } end)
    fails("'device' cannot be assigned; write x = x:to%(device%)", function() moth.ones(1).device = "cpu" end)
  end)
end)

describe("a method called with a dot", function()
  it("is an error of the user's line", function()
    local opt = moth.optim.SGD(nn.Linear(1, 1):parameters(), { lr = 1 })
    fails("hints_spec.lua:%d+: .*write a colon: opt:step%(%)", function() opt.step() end)
    fails("hints_spec.lua:%d+: .*write a colon: opt:zero_grad%(%)", function() opt.zero_grad() end)
    local sched = moth.optim.lr_scheduler.StepLR(opt, 2)
    fails("hints_spec.lua:%d+: .*write a colon: sched:step%(%)", function() sched.step() end)
    local net = nn.Linear(1, 1)
    fails("hints_spec.lua:%d+: .*write a colon", function() local list = net.parameters() return list end)
  end)
  it("is a hint of the launcher", function()
    local function says(code) return (child(code)) end
    assert.matches("HINT: call 'train' with a colon", says "moth.nn.Linear(1, 1).train()")
    assert.matches("HINT: call 'forward' with a colon", says "moth.nn.Linear(1, 1).forward(moth.ones(1, 1))")
    assert.matches("HINT: a tensor is compared by methods", says "print(moth.ones(1) < 1)")
    assert.is_nil(says "local self; print(self.x)":find("HINT", 1, true))
  end)

  it("leaves a field alone that is read and called in one line", function()
    local m = require("moth").nn.Linear(1, 1)
    local function first(o) if o.sreset then o:sreset() end return true end
    local function later(x, o) x = x + 1 if o.sreset_too then o:sreset_too() end return x end
    for _ = 1, 2 do assert.is_true(first(m)) end
    assert.equal(2, later(1, m))
    assert.error_matches(function() m:sreset_three() end, "Linear has no method 'sreset_three'")
  end)
end)

describe("a variable that is nowhere", function()
  it("is an error with the name that was meant, of locals, upvalues and globals", function()
    for code, meant in each {
      ["local learning_rate = 1 print(lerning_rate * 2)"] = "learning_rate",
      ["local layers = {} local function f() return layrs[1], layers end f()"] = "layers",
      ["moht.ones(3)"] = "moth",
      ["prnt 'x'"] = "print",
      ["local function f(weight) return 'a' .. wieght end f(1)"] = "weight",
    } do
      assert.matches("a nil value%); did you mean '" .. meant .. "'%?", (child(code)))
    end
    assert.not_matches("did you mean", (child "zzqqxx()"))
  end)
end)
