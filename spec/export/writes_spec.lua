-- Programs without writes: each function gives the same results, and leaves the same in its arguments, as its program.
local moth = require "moth"
local nn = require "moth.nn"

local function same(want, got, what)
  assert.equal(#want, #got)
  for i, t in ipairs(want) do
    assert.equal(t:dtype(), got[i]:dtype())
    assert.is_true(moth.equal(t, got[i]), what .. " " .. i)
  end
end

local function copies(list)
  local out = {}
  for i, t in ipairs(list) do out[i] = t:clone() end
  return out
end

-- The ops of a program that end in _, in their order.
local function writers(ep)
  local list = {}
  for node in ep.program:calls() do
    if node.op:find "_$" then list[#list + 1] = node.op end
  end
  return table.concat(list, " ")
end

local file = os.tmpname()

-- The writers that are left.
local function agrees(fn, args, more)
  local ep = moth.export(fn, args, more and { dynamic_shapes = { { [1] = moth.Dim("n", { min = 3 }) } } })
  moth.export.save(ep, file)
  for _, program in ipairs { ep, moth.export.load(file) } do
    for _, list in ipairs { args, more } do
      local a, b = copies(list), copies(list)
      same({ fn(unpack(a)) }, { program(unpack(b)) }, "result")
      same(a, b, "argument")
    end
  end
  return writers(ep), ep
end

local function fails(pattern, ...)
  local ok, message = pcall(moth.export, ...)
  assert.is_false(ok)
  assert.truthy(message:find(pattern), message)
end

local function at(...) return moth.tensor({ ... }, { dtype = moth.int64 }) end

describe("moth.export, writes in place", function()
  teardown(function() os.remove(file) end)

  it("are values; copies to inputs stand at the end #quick", function()
    assert.equal("", (agrees(function(x) return (x + 1):relu_():mul_(2) end, { moth.randn(3) })))
    assert.equal("copy_", (agrees(function(x) return x:relu_() end, { moth.randn(3) })))
    assert.equal("copy_", (agrees(function(x)
      x:t():select(1, 2):add_(1)
      return x * 1, x:t()
    end, { moth.randn(3, 4) })))
    assert.equal("copy_ copy_", (agrees(function(a, b)
      local t = a:clone()
      a:copy_(b)
      b:copy_(t)
      return a + b
    end, { moth.randn(3), moth.randn(3) })))
    local _, flat = agrees(function(x)
      x:flatten():mul_(2)
      return x + 1
    end, { moth.randn(3, 4) })
    assert.error_matches(function() flat(moth.randn(4, 3):t()) end, "writes to it, and takes it to be row%-major")
    agrees(function(a, b)
      b:copy_(a)
      a:add_(1)
      return b
    end, { moth.randn(3), moth.randn(3) })
  end)

  it("go through views of views, whatever they are made by", function()
    assert.equal("", (agrees(function(x)
      local y = x + 1
      y:movedim(1, 3)[2]:mul_(2)
      y:swapaxes(1, 2):narrow(1, 2, 1):add_(1)
      y:unbind(2)[1]:zero_()
      y:split(1, 3)[2]:neg_()
      y:reshape(-1):mul_(2)
      y:flatten(2):t()[3]:add_(1)
      y:unflatten(2, { 2, 2 })[{ {}, 1, 2 }]:fill_(4)
      y:permute(3, 1, 2):diagonal(0, 1, 2):sub_(1)
      y:slice(2, 0, 4, 2):neg_()
      y:as_strided({ 2, 2 }, { 3, 1 }, 1):add_(5)
      y:unfold(2, 2, 2):mul_(3)
      y:expand(-1, -1, -1):add_(1)
      return y, x
    end, { moth.randn(3, 4, 2) })))
    agrees(function(x)
      local y = x:sum(1, true)
      local wide, z = y:expand(4, 3), (x + 1):t()
      y:add_(1)
      z:reshape(-1):mul_(2) -- a copy
      z:add_(1)
      return wide, z:reshape(-1), z:contiguous():view(-1), x:t():contiguous():view(-1)
    end, { moth.randn(4, 3) })
    agrees(function(x)
      local y = moth.complex(x, x * 2)
      y:real():mul_(3)
      y:imag():add_(1)
      moth.view_as_real(y):select(2, 1):neg_()
      return y
    end, { moth.randn(6) })
  end)

  it("are what they are at another size, in views of views", function()
    local function both(fn, rank)
      local function given(n)
        if rank == 3 then return { moth.randn(n, 4, 3) } end
        return rank == "square" and { moth.randn(n, n) } or { moth.randn(n, 5), moth.randn(n, 5) }
      end
      local n = moth.Dim("n", { min = 5, max = 60 })
      local open = { [1] = n, [2] = rank == "square" and n or nil }
      local example = given(6)
      local ep = moth.export(fn, example, { dynamic_shapes = { open, #example > 1 and open or nil } })
      for _, size in ipairs { 6, 11, 17 } do
        local a = given(size)
        local b = copies(a)
        same({ fn(unpack(a)) }, { ep(unpack(b)) }, "result")
        same(a, b, "argument")
      end
    end
    for _, case in ipairs {
      { function(y) y:narrow(1, 2, 3):narrow(1, 2, 2):mul_(3) end },
      { function(y) y[2][3] = 7; y:select(2, -1):select(1, -2):add_(1) end },
      { function(y) y:permute(3, 1, 2):narrow(2, 2, 3):select(1, -1):neg_() end, 3 },
      { function(y) y:diagonal():add_(2); y:diagonal(1):zero_(); y:t():diagonal(-2):mul_(3) end, "square" },
      { function(y) y:slice(1, 1, 4, 2):add_(5); y:slice(2, 0, 4, 3):mul_(2) end },
      { function(y) y:narrow(1, 2, 3):view(-1):narrow(1, 4, 5):zero_() end },
      { function(y) y:as_strided({ 2, 2 }, { 5, 2 }, 1):add_(3) end },
      { function(y) y:narrow(1, 2, 3):as_strided({ 2 }, { 5 }, 6):fill_(1) end },
      { function(y) y:unfold(1, 2, 2):select(2, 1):mul_(3) end },
      { function(y) y:movedim(1, 3):select(1, 2):add_(1); y:swapaxes(1, 3)[2]:zero_() end, 3 },
      { function(y) y:flatten(2)[{ {}, { 2, 5 } }]:add_(4); y:flatten():narrow(1, 3, 4):neg_() end, 3 },
      { function(y) y:unflatten(2, { 2, 2 })[{ {}, 1, 2 }]:fill_(9) end, 3 },
      { function(y) y:unsqueeze(2):select(2, 1):narrow(1, 2, 2):add_(1); y:unsqueeze(1):squeeze(1):mul_(2) end },
      { function(y) y:chunk(2)[2]:add_(1); y:split(2, 2)[2]:mul_(2); y:unbind(2)[3]:zero_() end },
      { function(y) y:expand_as(y):view_as(y):t():t():add_(1) end },
      { function(y) y:narrow(1, 2, 3):masked_fill_(y:narrow(1, 2, 3):gt(0), 0); y:t()[at(1, 3)] = 4 end },
      { function(y) y:narrow(1, 1, 4):index_copy_(1, at(2, 3), y:narrow(1, 3, 2)) end },
      { function(y) moth.add(y:narrow(1, 1, 2), 1, { out = y:narrow(1, 3, 2) }) end },
      { function(y) y:add_(y:t()) end, "square" },
      { function(y) y:narrow(1, 1, math.min(y:size(1), 4)):zero_(); y[{ { -2, -1 } }]:sigmoid_() end },
    } do
      local write, rank = unpack(case)
      both(function(x) -- what is read behind was made before
        local y = x * 1
        local flat, turned = y:view(-1), y:movedim(1, 2)
        write(y)
        return y, flat, turned + 1
      end, rank)
      both(function(x) write(x) return x * 2 end, rank)
    end
    both(function(a, b)
      a:narrow(1, 1, 2):copy_(b:narrow(1, 3, 2))
      b:t():add_(a:t())
      a:select(2, 2):copy_(b[2][1])
      return a + b
    end)
    fails("several elements in one place", function(x)
      return x:expand(4, 5):add_(1)
    end, { moth.randn(4, 1) })
  end)

  it("keep the dtype of what is written to, and take results by out", function()
    agrees(function(x)
      local y, f = x:to(moth.int32), x:clone()
      y:mul_(3)
      y:copy_(x)
      f:add_(moth.arange(3))
      f:copy_(moth.arange(3))
      f[2] = 7
      f:narrow(1, 3, 1):fill_(x:sum())
      local z, b = moth.empty(3), x:gt(0)
      moth.add(x, x, { out = z })
      b[1] = true
      b:zero_()
      return y, f, z * 2, b
    end, { moth.randn(3) })
  end)

  it("by positions and masks are written to copies", function()
    agrees(function(x)
      local y = x * 1
      y[at(1, 3)] = 3
      y:index_add_(1, at(1, 3), x:narrow(1, 1, 2))
      y:index_fill_(1, at(2), 2)
      y:scatter_(1, at(2, 6), 3)
      y:masked_fill_(y:gt(2), 0)
      y:put_(at(1, 3), x:narrow(1, 2, 2))
      return y, (x * 1):index_put_({ at(1, 1, 2) }, moth.ones(3), true)
    end, { moth.randn(6) })
  end)

  it("follow sizes", function()
    local _, ep = agrees(function(x)
      local y = x * 1
      y[1], y[-1] = 0, 2
      y[{ {}, 2 }] = x[1][2]
      y:t():add_(1)
      y[{ {}, { -2, -1 } }]:zero_()
      y:narrow(1, 2, x:size(1) - 1):mul_(3)
      y:chunk(2)[1]:add_(1)
      y:view(-1)[2] = 9
      y:reshape(-1):narrow(1, x:size(1), 3):zero_()
      return y, x
    end, { moth.randn(4, 5) }, { moth.randn(101, 5) })
    assert.equal("", writers(ep))
    assert.equal(writers(ep), writers(ep:decompose()))
  end)

  it("to buffers are copies at the end, in branches, too", function()
    local Net = nn.class("Net")
    function Net:__init()
      self.norm = nn.BatchNorm1d(2)
      self:register_buffer("n", moth.zeros(2))
      self:register_buffer("m", moth.ones(2))
    end
    function Net:forward(x)
      self.n:add_(1)
      x = self.norm(x):mul_(2)
      local y = moth.cond(x:sum():gt(0), function(v)
        self.m:add_(v:sum(1))
        return v + self.n
      end, function(v) return v * 2 end, { x })
      self.n:mul_(2)
      self.m:add_(1)
      return y + self.n + self.m
    end
    local a, b = Net(), Net()
    local ep = moth.export(b, { moth.randn(4, 2) })
    for _ = 1, 3 do
      local x = moth.randn(4, 2)
      same({ a(x) }, { ep(x) }, "result")
      for name, t in pairs(a:state_dict()) do assert.is_true(moth.equal(t, b:state_dict()[name]), name) end
    end
    local Until = nn.class("Until") -- the test alone reads it
    function Until:__init() self:register_buffer("n", moth.zeros(1)) end
    function Until:forward(x)
      local v = self.n:view(-1)
      self.n:add_(3)
      local _, y = moth.while_loop(function(i) return i:lt(self.n) end, function(i, y) return i + 1, y * 2 end,
        { moth.zeros(1), x })
      self.n:sub_(1)
      return y + self.n, v * 2
    end
    a, b = Until(), Until()
    ep = moth.export(b, { moth.ones(2) })
    for _ = 1, 2 do
      same({ a(moth.ones(2)) }, { ep(moth.ones(2)) }, "result")
      same({ a.n }, { b.n }, "buffer")
    end
    local Twice = nn.class("Twice")
    function Twice:__init()
      self:register_buffer("all", moth.zeros(4))
      self:register_buffer("some", self.all:narrow(1, 1, 2)) -- stays in place
    end
    function Twice:forward(x)
      self.all:add_(x)
      self.some:mul_(2)
      local v = self.all:view(2, 2)
      self.all:add_(1)
      return self.some * 1, v * 2
    end
    a, b = Twice(), Twice()
    ep = moth.export(b, { moth.ones(4) })
    for _ = 1, 2 do
      local x = moth.randn(4)
      same({ a(x) }, { ep(x) }, "result")
      same({ a.all }, { b.all }, "buffer")
    end
  end)

  it("are in place again in a run, where nothing else reads what was there", function()
    local function ops_of(fn, ...)
      local ep = moth.export(fn, { ... })
      local list = {}
      for i, node in ipairs(ep.placed.nodes) do list[i] = node.op end
      local a, b = copies { ... }, copies { ... }
      same({ fn(unpack(a)) }, { ep(unpack(b)) }, "result")
      same(a, b, "argument")
      return table.concat(list, " ")
    end
    local c, x = moth.randn(6, 4), moth.randn(1, 4)
    assert.equal("add_ index_copy_ mul slice copy_ t matmul", ops_of(function(k, n, a)
      n:add_(1)
      k:index_copy_(1, n, a)
      k:narrow(1, 5, 1):copy_(a * 2)
      return a:matmul(k:t())
    end, c, at(2), x))
    assert.equal("select select add select copy_ mul", ops_of(function(k)
      k:select(1, 2):add_(k:select(1, 3)) -- reads what it writes to
      return k * 1
    end, c))
    assert.equal("mul add copy_", ops_of(function(k) -- the old value is read behind
      local old = k * 1
      k:add_(old)
      return k
    end, c))
    assert.equal("clone add_ mul", ops_of(function(k)
      local old = k:clone()
      k:add_(1)
      return old * 2
    end, c))
    assert.equal("clone clone mul copy_ copy_", ops_of(function(k, l) -- they change places
      local old = k:clone()
      k:copy_(l)
      l:copy_(old)
      return k * 1
    end, c, c * 2))
  end)

  it("to operands of cond and while_loop are results of theirs", function()
    agrees(function(x)
      local z = x * 2
      local y = moth.cond(x:sum():gt(0), function(v)
        v:add_(1)
        return v * 2
      end, function(v)
        v[1] = 5
        return v - 1
      end, { z[2] })
      local i, w = moth.while_loop(function(i) return i:lt(3) end, function(i, v)
        v:add_(1)
        return i + 1, v
      end, { moth.tensor(0), z:select(2, 1) })
      return y, z, i, w
    end, { moth.rand(3, 2) })
    agrees(function(x)
      return moth.cond(x:sum():gt(0), function(v) return v:mul_(2) end, function(v) return v - 1 end, { x })
    end, { moth.rand(3) })
    fails("cond %(.*writes_spec.lua:%d+%) writes to operand 1, whose memory operand 2 shows", function(x)
      local z = x * 2
      local operands = { z, z:t() }
      return moth.cond(x:sum():gt(0), function(a, b) return a:add_(b) end, function(a, b) return a - b end, operands)
    end, { moth.rand(2, 2) })
    fails("add_ %(.*%) writes to a result of cond %(.*which may be one of its operands", function(x)
      return moth.cond(x:sum():gt(0), function(a) return a:view(-1) end, function(a) return a - 1 end, { x }):add_(1)
    end, { moth.rand(3) })
    fails("a result of cond %(.*which may be one of its operands itself, is read behind a write", function(x)
      local z = x * 1
      local y = moth.cond(x:sum():gt(0), function(a) return a:view(-1) end, function(a) return a - 1 end, { z })
      z:add_(1)
      return y
    end, { moth.rand(3) })
    agrees(function(x)
      local z = x * 1
      local y = moth.cond(x:sum():gt(0), function(a) return a end, function(a) return a - 1 end, { z })
      local s = y + 1
      z:add_(1)
      return s, z
    end, { moth.rand(3) })
    local Given = nn.class("Given")
    function Given:__init() self:register_buffer("n", moth.ones(3)) end
    function Given:forward(x)
      local y = moth.cond(x:sum():gt(0), function() return self.n end, function(a) return a * 2 end, { x })
      local _, z = moth.while_loop(function(i) return i:lt(3) end, function(i) return i + 1, self.n end,
        { moth.tensor(0), x })
      x:add_(1)
      return y, z
    end
    local a, ep = Given(), moth.export(Given(), { moth.ones(3) })
    for _, x in ipairs { moth.ones(3), -moth.ones(3) } do same({ a(x:clone()) }, { ep(x:clone()) }, "state") end
    fails("the body writes to operand 2, and gives another value", function(x)
      return moth.while_loop(function(i) return i:lt(3) end, function(i, v)
        v:add_(1)
        return i + 1, v * 2
      end, { moth.tensor(0), x })
    end, { moth.rand(3) })
  end)

  it("functions of cond and while_loop reach what is around them, and may write to it", function()
    local lin = nn.Linear(3, 3)
    for _, f in ipairs {
      function(x)
        local y, t = x * 2, { a = x + 1 }
        local function h(a) return a * y end
        return moth.cond(x:sum():gt(0), function(a) return h(a) + y:sum() end, function(a) return a - t.a end, { x })
      end,
      function(x)
        local y = x * 2
        return moth.cond(x:sum():gt(0), function() return lin(y) end, function() return y - x end, {})
      end,
      function(x)
        local most, k = x:abs():sum() * 0 + 4, x * 2
        return moth.while_loop(function(i) return i:lt(most) end, function(i, s)
          local q = s / 2
          return i + 1, moth.cond(most:gt(i * 2), function(a) return a + k end, function(a) return a - q * k end, { s })
        end, { moth.tensor(0), x })
      end,
      function(x)
        local sum, z = moth.zeros(3), x * 1
        local i = moth.while_loop(function(i) return i:lt(3) end, function(i)
          sum:add_(x)
          return i + 1
        end, { moth.tensor(0) })
        local y = moth.cond(x:sum():gt(0), function(a)
          z:narrow(1, 1, 2):zero_()
          return a * z
        end, function(a)
          z:mul_(2)
          return a
        end, { x })
        return sum, i, y, z
      end,
    } do
      local ep = moth.export(f, { moth.ones(3) })
      moth.onnx.export(ep, nil, file)
      local session = moth.onnx.InferenceSession(file)
      moth.edge.export(ep, file)
      local edge = moth.edge.load(file)
      for _, x in ipairs { moth.ones(3), -moth.ones(3), moth.randn(3) } do
        local want = { moth.no_grad(f, x) }
        for _, got in ipairs { { ep(x) }, { edge(x) }, session:run(nil, { x = x }) } do
          for i, w in ipairs(want) do assert.is_true(moth.allclose(w, got[i]), "result " .. i) end
        end
      end
    end
    fails("sets a variable from around it to another tensor", function(x)
      local z = x * 1
      local y = moth.cond(x:sum():gt(0), function(a)
        z = z + 1
        return a
      end, function(a) return a end, { x })
      return y, z
    end, { moth.ones(3) })
  end)

  it("in files that an older moth wrote run as they are, and are made values by writers of files", function()
    local writes = require "moth.export.writes"
    local functional = writes.functional
    local function fn(x)
      local y = x * 2
      y:t():select(1, 1):add_(1)
      y[at(1)] = 3
      return y:relu_(), x:mul_(2)
    end
    writes.functional = function(program) return program end
    local ep = moth.export(fn, { moth.randn(3, 4) })
    writes.functional = functional
    moth.export.save(ep, file)
    ep = moth.export.load(file)
    assert.equal("add_ scatter_nd_ relu_ mul_", writers(ep))
    local x = moth.randn(3, 4)
    local a, b = x:clone(), x:clone()
    local want = { fn(a) }
    same(want, { ep(b) }, "result")
    same({ a }, { b }, "argument")
    moth.edge.export(ep, file)
    same(want, { moth.edge.load(file)(x) }, "edge")
    local ok, message = pcall(moth.onnx.export, ep, nil, file)
    assert.truthy(not ok and message:find "writes to x, which is not the program's own")
  end)
end)
