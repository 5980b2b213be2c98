--- Training through the C API alone (moth.C, by LuaJIT's FFI): the network of examples/c/train.c learns which points of
-- the plane lie within a circle. #M511
--
--     build/moth examples/ffi_train.lua
local ffi = require "ffi"
local moth = require "moth"
local C, capi = moth.C, moth.capi
local check, value = capi.check, capi.value

local POINTS, HIDDEN, STEPS = 512, 32, moth.cli({ { "[N]", "steps", 200 } }).n

-- The results of a step, released at its end.
local made, n = ffi.new("MothTensor *[64]"), 0
local function new(status_of, ...)
  local args, count = { ... }, select("#", ...) + 1
  args[count] = made + n
  check(status_of(unpack(args, 1, count)))
  n = n + 1
  return made[n - 1]
end
local function release()
  for i = 0, n - 1 do C.moth_tensor_release(made[i]) end
  n = 0
end
local function keep(t)
  C.moth_tensor_retain(t)
  return t
end

local none = value(nil)
C.moth_generator_seed(C.moth_default_generator(), 1)

-- points x (N, 2) and their classes (N): 1 within the circle, 0 outside
local size, two = capi.ints({ POINTS, 2 })
local last = ffi.new("int64_t[1]", -1)
local function dims(p)
  local v = ffi.new("MothValue")
  v.tag, v.n, v.u.ints = C.MOTH_V_INTS, 1, p
  return v
end
local x = keep(new(C.moth_randn, size, two, none, none, nil))
local distance = new(C.moth_sum, new(C.moth_mul, value(x), value(x)), dims(last), false, none)
local inside = new(C.moth_lt, value(distance), value(1.4))
local classes = keep(new(C.moth_to, inside, value(moth.int64), none, false, false))
release()

-- A leaf with values of [-bound, bound).
local function parameter(sizes, bound)
  local ints, ndim = capi.ints(sizes)
  local p = keep(new(C.moth_zeros, ints, ndim, none, none))
  check(C.moth_uniform_(p, -bound, bound, nil))
  check(C.moth_tensor_set_requires_grad(p, true))
  return p
end
local params = { parameter({ HIDDEN, 2 }, 0.7), parameter({ HIDDEN }, 0.7), parameter({ 2, HIDDEN }, 0.18),
  parameter({ 2 }, 0.18) }
release()

local root, lists = ffi.new("MothTensor *[1]"), ffi.new("MothTensor *[2][4]")
local item = ffi.new("MothValue")
local first, loss
for step = 1, STEPS do
  local hidden = new(C.moth_relu, new(C.moth_linear, x, params[1], params[2]))
  local logits = new(C.moth_linear, hidden, params[3], params[4])
  root[0] = new(C.moth_cross_entropy, logits, classes, nil, "mean", -100, 0, 0)
  check(C.moth_backward(root, nil, 1, false, false))
  for i, p in ipairs(params) do lists[0][i - 1], lists[1][i - 1] = p, C.moth_tensor_grad(p) end
  C.moth_set_grad_enabled(false)
  check(C.moth_sgd_step(lists[0], 4, lists[1], 4, nil, 0, value(0.5), 0, 0, 0, false, false, true, nil, nil))
  C.moth_set_grad_enabled(true)
  for _, p in ipairs(params) do check(C.moth_tensor_set_grad(p, nil)) end
  check(C.moth_tensor_item(root[0], item))
  loss = item.u.d
  first = first or loss
  if step % 50 == 0 then print(("step %3d  loss %.4f"):format(step, loss)) end
  release()
end

-- From here on Lua owns the tensor.
local weight = capi.own(params[1])
print(("loss %.4f -> %.4f, weights %s"):format(first, loss, tostring(weight:size())))
for i = 2, 4 do C.moth_tensor_release(params[i]) end
C.moth_tensor_release(x)
C.moth_tensor_release(classes)
assert(loss < first / 3, "the loss did not fall")
