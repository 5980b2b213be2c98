-- Optimizer steps on the device against the CPU: many tensors of mixed sizes, dtypes and layouts in one call,
-- and the scale of the gradients that is read on the device.
local moth = require "moth"

local tolerance = { float32 = 1e-5, float64 = 1e-12, float16 = 4e-3, bfloat16 = 3e-2 }

-- Lists for one call: `count` lists of the same tensors' shapes, on the CPU and the device.
local function lists(count, dtypes)
  local shapes = { {}, { 0 }, { 1 }, { 3 }, { 17, 5 }, { 8192 }, { 8193 }, { 3, 5000 } }
  for i = 1, 70 do shapes[#shapes + 1] = { i } end -- more than one launch takes
  local here, there = {}, {}
  for k = 1, count do
    here[k], there[k] = {}, {}
    for i, shape in ipairs(shapes) do
      local dtype = dtypes[i % #dtypes + 1]
      local t = (k < 3 and moth.randn or moth.rand)(shape):to(dtype)
      if k == 3 then t = t * 0.1 end
      here[k][i] = t
      local far = t:to "cuda"
      if i % 5 == 0 and #shape == 1 then -- with gaps
        far = moth.stack({ far, far }, 2):select(2, 1)
      elseif i % 5 == 1 and #shape == 1 then -- at an odd address
        far = moth.cat({ far, far }, 1):narrow(1, t:numel() + 1, t:numel())
      end
      there[k][i] = far
    end
  end
  return here, there
end
local function compare(a, b)
  for k = 1, #a do
    for i = 1, #a[k] do
      local x, y = a[k][i], b[k][i]:cpu()
      local e = tolerance[x:dtype().name]
      assert(moth.allclose(x:to "float64", y:to "float64", { rtol = e, atol = e }),
        ("list %d, tensor %d (%s) differs"):format(k, i, x:dtype().name))
    end
  end
end

describe("optimizer steps on CUDA", function()
  if not moth.cuda.is_available() then
    it("are the CPU's", function() pending(moth.cuda.why()) end)
    return
  end
  local dtypes = { { "float32" }, { "float64" }, { "float16" }, { "bfloat16" }, { "float32", "float64", "bfloat16" } }

  it("sgd", function()
    for _, d in ipairs(dtypes) do
      for _, o in ipairs {
        { 0.1, 0, 0, 0.01, false, false, true }, { 0.1, 0.9, 0.1, 0.01, false, true, false },
        { 0.1, 0.9, 0, 0, true, false, false }, { 0.1, 0.9, 0, 0, true, false, true },
      } do
        local a, b = lists(3, d)
        if o[7] then -- the first step does not read the buffers
          for i = 1, #a[3] do
            a[3][i]:fill_(0 / 0)
            b[3][i]:fill_(0 / 0)
          end
        end
        local with = o[2] ~= 0
        moth.ops.moth.sgd_step(a[1], a[2], with and a[3] or {}, unpack(o))
        moth.ops.moth.sgd_step(b[1], b[2], with and b[3] or {}, unpack(o))
        if not with then a[3], b[3] = nil, nil end
        compare(a, b)
      end
    end
  end)
  it("adam", function()
    for _, d in ipairs(dtypes) do
      for _, o in ipairs {
        { 0.01, 0.9, 0.99, 1e-6, 0.1, 3, false, false, false }, { 0.01, 0.9, 0.99, 1e-6, 0.1, 1, true, false, true },
        { 0.01, 0.9, 0.99, 1e-6, 0, 2, false, true, false },
      } do
        local a, b = lists(5, d)
        moth.ops.moth.adam_step(a[1], a[2], a[3], a[4], o[8] and a[5] or {}, unpack(o))
        moth.ops.moth.adam_step(b[1], b[2], b[3], b[4], o[8] and b[5] or {}, unpack(o))
        compare(a, b)
      end
    end
  end)
  it("the gradients' scale is a tensor, of any float dtype", function()
    for _, dtype in ipairs { "float32", "float64", "float16" } do
      local a, b = lists(4, { "float32", "float64" })
      local scale = moth.tensor(0.25):to(dtype):to "cuda"
      for i = 1, #a[2] do a[2][i]:mul_(0.25) end
      moth.ops.moth.sgd_step(a[1], a[2], {}, 0.1, 0, 0, 0.1, false, false, true)
      moth.ops.moth.sgd_step(b[1], b[2], {}, 0.1, 0, 0, 0.1, false, false, true, scale)
      moth.ops.moth.adam_step(a[1], a[2], a[3], a[4], {}, 0.01, 0.9, 0.99, 1e-6, 0.1, 2, true, false, true)
      moth.ops.moth.adam_step(b[1], b[2], b[3], b[4], {}, 0.01, 0.9, 0.99, 1e-6, 0.1, 2, true, false, true, scale)
      a[2], b[2] = {}, {}
      compare(a, b)
    end
  end)
  it("steps whose kernels are written from their records", function()
    local ops = moth.ops.moth
    -- Name, number of lists, the numbers; then which of the states may be empty.
    for _, case in ipairs {
      { "adagrad_step", 3, 0.1, 0.1, 0.1, 1e-6, 3, true }, { "adadelta_step", 4, 1, 0.9, 1e-4, 0.1, false },
      { "adamax_step", 4, 0.01, 0.9, 0.99, 1e-3, 0.1, 3, true },
      { "nadam_step", 4, 0.01, 0.9, 0.99, 1e-3, 0.1, 0.004, 2, 0.4, true, false },
      { "radam_step", 4, 0.01, 0.9, 0.99, 1e-3, 0.1, 9, false, true },
      { "rmsprop_step", 3, {}, {}, 0.01, 0.9, 1e-2, 0.1, 0, false },
      { "rmsprop_step", 4, {}, 0.01, 0.9, 1e-2, 0.1, 0.9, true },
      { "rprop_step", 4, 0.5, 1.2, 1e-3, 0.4, false }, { "asgd_step", 3, 0.1, 0.25, 0.01, 0.1, true },
      { "lion_step", 3, 0.01, 0.9, 0.99, 0.1, true },
    } do
      for _, d in ipairs { { "float32" }, { "float32", "float64", "bfloat16", "float16" } } do
        local name, count = case[1], case[2]
        local a, b = lists(count, d)
        for k = 3, count do -- squares and steps are positive
          for i = 1, #a[k] do
            a[k][i]:abs_():add_(0.5)
            b[k][i]:abs_():add_(0.5)
          end
        end
        local function call(x, ...)
          local given = {}
          for k = 1, count do given[k] = x[k] end
          for k = 3, #case do given[#given + 1] = case[k] end
          for k = 1, select("#", ...) do given[#given + 1] = (select(k, ...)) end
          ops[name](unpack(given))
        end
        call(b, moth.tensor(0.5):to "cuda", moth.ones({}):to "cuda") -- nothing is written
        call(a, moth.tensor(0.5), moth.zeros({}))
        call(b, moth.tensor(0.5):to "cuda", moth.zeros({}):to "cuda")
        a[2], b[2] = {}, {}
        compare(a, b)
      end
    end
  end)
  it("numbers of a step that lie on the device", function()
    local params = {}
    for k, device in ipairs { "cpu", "cuda" } do
      moth.manual_seed(4)
      local p = moth.randn(5, 3)
      p = p:to(device):requires_grad_()
      params[k] = p
      for _, name in ipairs { "Adam", "NAdam", "ASGD", "RAdam", "LAMB" } do
        local o = moth.optim[name]({ p }, { lr = moth.tensor(0.01):to(device), capturable = k == 2 })
        for t = 1, 4 do
          p.grad = moth.cos(p:detach() * t)
          if k == 2 then o.found_inf = (t == 2 and moth.ones or moth.zeros)({}, { device = device }) end
          if k == 2 or t ~= 2 then o:step() end
        end
        if k == 2 then assert.equal(3, o.state[p].step:item()) end
      end
    end
    assert.is_true(moth.allclose(params[1]:detach(), params[2]:detach():cpu(), 1e-5, 1e-5))
  end)
end)
