-- Tracebacks of errors that moth catches and raises again, and where in a network an error happened.
local moth = require "moth"
local nn, trace = moth.nn, require "moth.lang.trace"

local function deepest() error("deep", 0) end
local function middle() deepest() return 1 end

-- The traceback that the prompt would show of what fn raises.
local function shown(fn)
  local ok, text = xpcall(fn, trace.traceback)
  assert.is_false(ok)
  return text
end

local function keeps_frames(fn)
  local text = shown(fn)
  assert.matches("^deep\nstack traceback:", text)
  assert.matches("in function 'deepest'", text)
  assert.matches("in function 'middle'", text)
  assert.not_matches("within%.lua", text)
end

describe("tracebacks #quick", function()
  local x = moth.ones({ 2 }, { requires_grad = true })

  it("keep the frames of what ran under a mode, however deep", function()
    keeps_frames(function() moth.no_grad(function() middle() return 1 end) end)
    keeps_frames(function() moth.scope(function() middle() return 1 end) end)
    keeps_frames(function()
      moth.no_grad(function() moth.enable_grad(function() moth.scope(function() middle() return 1 end) end) end)
    end)
    keeps_frames(function() moth.autocast({}, function() middle() return 1 end) end)
    keeps_frames(function() moth.func.grad(function() middle() return 1 end)(x) end)
  end)

  it("keep those of hooks, backward functions and modes, through C", function()
    keeps_frames(function()
      local y = x * 2
      y:register_hook(function() middle() return 1 end)
      y:sum():backward()
    end)
    local f = moth.autograd.Function { forward = function(_, t) return t * 2 end,
      backward = function() middle() return 1 end }
    keeps_frames(function() f(x):sum():backward() end)
    keeps_frames(function()
      moth.dispatch_mode(function() middle() return 1 end, function() return moth.ones(2) * 2 end)
    end)
  end)

  it("are never those of another error", function()
    pcall(moth.no_grad, middle)
    local text = shown(function()
      local function fresh() error("deep", 0) end
      fresh()
      return 1
    end)
    assert.matches("in function 'fresh'", text)
    assert.not_matches("deepest", text)
    local ok, e = pcall(moth.no_grad, middle)
    assert.is_false(ok)
    assert.not_matches("deepest", shown(function() error(e, 0) end)) -- thrown again by hand: today's frames
  end)

  it("leave the value of an error as it is", function()
    local value = {}
    local ok, e = pcall(moth.no_grad, function() moth.scope(function() error(value) end) end)
    assert.is_false(ok)
    assert.is_true(rawequal(value, e))
    ok, e = xpcall(function() moth.no_grad(error, value) end, trace.traceback)
    assert.is_false(ok)
    assert.is_true(rawequal(value, e))
  end)

  it("let coroutines yield inside", function()
    local co = coroutine.wrap(function() return moth.no_grad(function() return coroutine.yield(1) + 1 end) end)
    assert.equal(1, co())
    assert.equal(5, co(4))
  end)

  it("are printed by the launcher", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local file = assert(io.open(path, "w"))
    file:write('local moth = require "moth"\nlocal function inner() error("boom") end\n',
      "moth.no_grad(function()\n  inner()\n  return 1\nend)\n")
    file:close()
    local moth_bin = (os.getenv("MOTH_BUILD") or "build") .. "/moth"
    local pipe = assert(io.popen(("%s %s 2>&1"):format(moth_bin, path)))
    local text = pipe:read("*a")
    pipe:close()
    assert.matches("in function 'inner'.-\n[^\n]*:4: in function.-\n[^\n]*:3: in main chunk", text)
  end)
end)

describe("errors in a network say where", function()
  local Net = nn.class("Net")
  function Net:__init(second)
    self.features = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), second or nn.Conv2d(3, 2, 3))
    self.head = nn.Linear(3, 4)
  end
  function Net:forward(x) return self.head(self.features(x)) end

  local function says(pattern, fn, ...)
    local ok, message = pcall(fn, ...)
    assert.is_false(ok)
    assert.matches(pattern, message)
    return message
  end
  local image = moth.zeros(1, 1, 8, 8)

  it("by the path from the outermost module", function()
    local where = "; in features%.2 %(Conv2d%) of Net$"
    says(where, Net(), image)
    says(where, moth.no_grad, Net(), image)
    local Outer = nn.class("Outer")
    function Outer:__init() self.nets = nn.ModuleList { Net(nn.Identity()), Net() } end
    function Outer:forward(x) return self.nets[2](x) end -- a tail call
    says("; in nets%.1%.features%.2 %(Conv2d%) of Outer$", Outer(), image)
    local m = Net()
    says(where, function() return m:forward(image) end)
    says("; in head %(Linear%) of Net$", function() return m:forward_head(image) end)
  end)
  function Net:forward_head(x) local y = self.head(x) return y end

  it("with hooks, in coroutines, of shared and of bare modules", function()
    local m = Net()
    m:register_forward_hook(function() end)
    m.features[3]:register_forward_pre_hook(function() end)
    says("; in features%.2 %(Conv2d%) of Net$", m, image)
    says("; in features%.2 %(Conv2d%) of Net$", coroutine.wrap(function() return m(image) end))
    local shared = nn.Linear(3, 4)
    says("; in 0 %(Linear%) of Sequential$", nn.Sequential(shared, shared), moth.zeros(2, 3))
    says("; in Linear$", nn.Linear(3, 4), moth.zeros(2, 5))
    local Hidden = nn.class("Hidden")
    function Hidden:__init() self.list = { nn.Linear(3, 4) } end
    function Hidden:forward(x) return self.list[1](x) end
    says("; in Hidden$", Hidden(), moth.zeros(2, 5))
    says("; in features%.2 %(BatchNorm1d%) of Net$", Net(nn.BatchNorm1d(2)), image) -- a check in Lua
  end)

  it("but not of constructors, nor outside of modules", function()
    local Broken = nn.class("Broken")
    function Broken:__init() self.a = nn.Conv2d(1, 2, 3, { bogus = 1 }) end
    assert.not_matches("; in ", says("unknown option 'bogus'", Broken))
    assert.not_matches("; in ", says("self and mat2", function() return moth.zeros(2, 3):mm(moth.zeros(2, 3)) end))
    Net.forward_make = function() return nn.Linear(-1, 3) end
    assert.not_matches("Linear%) of", says("in_features", function() return Net():forward_make() end))
  end)
end)
