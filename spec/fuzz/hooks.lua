--- Programs of hooks: on tensors and modules; functions with a derivative of their own; coroutines and modes. A hook
-- removes itself or others, adds some, raises, calls backward again, frees and changes tensors, collects garbage,
-- yields. A source of lines for spec/fuzz/api.lua.
local P = require "fuzz.program"

local function at(c) return ("p[%d]"):format(c:int(P.POOL)) end

-- What a hook does; g is a gradient (of a module's hook: any value).
local deeds = {
  function(c) return ("if h[%d] then h[%d]:remove() end"):format(c:int(4), c:int(4)) end,
  function(c) return ("for i = %d, 8 do if h[i] then h[i]:remove() end end"):format(c:int(8)) end,
  function(c) return ("h[%d] = %s:register_hook(function(x) return x end)"):format(c:int(8), at(c)) end,
  function(c)
    return c:pick({ "error('hook')", "error({})", "error(nil)", "error(setmetatable({}, {__tostring=error}))" })
  end,
  function(c) return ("deeper(function() G(%s, true) end)"):format(at(c)) end,
  function(c) return ("deeper(function() GG(%s, %d) end)"):format(at(c), c:int(P.POOL)) end,
  function(c) return ("deeper(function() pcall(G, %s) end)"):format(at(c)) end,
  function(c) return ("deeper(function() G(f(%s), %s) end)"):format(at(c), c:pick({ "true", "false" })) end,
  function(c) return ("p[%d] = T('float32',{2,3},false)"):format(c:int(P.POOL)) end,
  function(c) return ("p[%d] = g"):format(c:int(P.POOL)) end,
  function(c) return ("moth.no_grad(function() %s:mul_(2) end)"):format(at(c)) end,
  function(c) return ("%s:add_(1)"):format(at(c)) end,
  function(c) return ("%s.grad = %s"):format(at(c), c:pick({ "nil", "g", "g:detach()", "moth.zeros(2,3)" })) end,
  function(c) return ("%s:free()"):format(at(c)) end,
  function(c) return ("%s:requires_grad_(%s)"):format(at(c), c:pick({ "true", "false" })) end,
  function(c) return ("%s.data = g:detach():clone()"):format(at(c)) end,
  function() return "collectgarbage()" end,
  function() return "collectgarbage('step')" end,
  function() return "coroutine.yield(1)" end,
  function(c) return ("if y[%d] then y[%d]() end"):format(c:int(4), c:int(4)) end,
  function() return "g:mul_(2)" end,
  function() return "g:free()" end,
  function(c) return ("%s:retain_grad()"):format(at(c)) end,
  function(c) return ("local n = %s.grad_fn if n then n:next_functions() n:name() n:id() end"):format(at(c)) end,
  function() return "moth.autograd.set_grad_enabled(false)" end,
  function() return "moth.autograd.set_grad_enabled(true)" end,
  function() return "moth.dispatch.count(function() return g + 1 end)" end,
  function() return "moth.dispatch.count(function() collectgarbage() collectgarbage() return g + 1 end)" end,
  function(c) return ("%s:untyped_storage():resize_(%s)"):format(at(c), c:pick { "0", "0", "24", "48" }) end,
  function(c) -- a launch on memory that was given back
    return ("local a = %s:clone() a:untyped_storage():resize_(0) "
      .. "assert(not pcall(k.launch, k, {1}, a, a, 4))"):format(at(c))
  end,
  function(c) -- an error in the middle of loading a module that comes when it is needed
    return ("package.loaded['moth.signal'] = nil debug.sethook(function() error('hook') end, '', %d) "
      .. "pcall(function() return require 'moth.signal' end) debug.sethook() require 'moth.signal'"):format(c:int(400))
  end,
}
local answers = { "", "", "", "return g", "return g * 2", "return g:clone()", "return g:detach()", "return 5",
  "return 'x'", "return moth.zeros(7)", "return g:to(moth.float64)", "return g:to(moth.int64)", "return nil, g",
  "return {g}",
  "return g:expand(g:size())", "return moth.ones(1)", "return false", "return freed()" }

local function body(c)
  local parts = {}
  for i = 1, c:int(0, 2) do parts[i] = c:pick(deeds)(c) end
  parts[#parts + 1] = c:pick(answers)
  return table.concat(parts, " ")
end

-- A function with a derivative of its own, as right as a user may write it.
local function own_function(c)
  local keep = c:pick({ "", "ctx:save_for_backward(...)", "ctx:save_for_backward(g, 3)", "ctx:mark_dirty(g)",
    "ctx.x = g",    "ctx:mark_non_differentiable(g)" })
  local result = c:pick({ "g * 2", "g", "g, g * 3", "g:exp()", "5", "", "g:detach()", "g:narrow(1, 1, 1)" })
  local saved = c:pick({ "", "", "local s = ctx:saved_tensors()", "ctx:save_for_backward(g)" })
  local grads = c:pick({ "return g", "return g * 2, nil", "", "return nil", "return g, g", "return 5",
    "return moth.zeros(7)" })
  return ("f = moth.autograd.Function{name='F', forward=function(ctx, ...) local g = ... %s %s return %s end, "
    .. "backward=function(ctx, g, ...) %s %s %s end}"):format(keep, c:one_in(3) and c:pick(deeds)(c) or "", result,
    saved, c:one_in(2) and c:pick(deeds)(c) or "", grads)
end

-- Something in a mode that the handler may pass on, answer, or fail.
local function in_mode(c)
  if c:one_in(3) then return ("moth.no_grad(function() local g = %s %s end)"):format(at(c), body(c)) end
  local handler = c:pick({ "return fn(unpack(args))", "return fn(unpack(args))", "return nil", "error('mode')",
    "return 5",    "local g = args[1] " .. body(c) })
  return ("moth.dispatch_mode(function(fn, args) %s end, function() local g = %s return %s end)"):format(handler, at(c),
    c:pick({ "g * 2 + 1", "G(g, true)", "g:matmul(g:t())", "m(g)", "g[1]", "moth.nn.functional.softmax(g, 2)" }))
end

local KERNEL = "k = moth.kernel.jit(function(x, out, n) local tl = moth.kernel.lang local o = tl.arange(0, 8) "
  .. "tl.store(out + o, tl.load(x + o, {mask = o < n}) * 2, {mask = o < n}) end)"

--- The next line: as in spec/fuzz/calls.lua.
return function(c, program, i)
  local head = ("seed(%d) "):format(c:int(99999))
  program.raises = true
  if i == 1 then
    local parts = { head, KERNEL, "h, y, f, m, depth = {}, {}, moth.exp, nn.Sequential(nn.Linear(3,3), nn.Tanh()), 0",
      "function deeper(fn) if depth > 4 then return end depth = depth + 1 local ok, e = pcall(fn) depth = depth - 1"
      .. " if not ok then error(e, 0) end end" }
    for k = 1, P.POOL do
      local dtype = c:pick({ "float32", "float64" })
      parts[#parts + 1] = ("p[%d]=T('%s',{2,3},true,'%s')"):format(k, dtype, c:pick(P.layouts))
    end
    return table.concat(parts, " "), false, "pool"
  end
  local n = c:int(20)
  local text, what
  if n <= 4 then
    what, text = "make", ("p[%d] = %s"):format(c:int(P.POOL), c:pick({
      "T('float32',{2,3},true)", at(c) .. " * " .. at(c), at(c) .. ":exp()",
      "f(" .. at(c) .. ")", "f(" .. at(c) .. "," .. at(c) .. ")", "m(" .. at(c) .. ")",
      at(c) .. ":narrow(2, 1, 2)", at(c) .. ":detach()", at(c) .. ":t():contiguous():t()", at(c) .. "[1]:expand(2,3)",
      at(c) .. ":select(1,1):expand(2,3)", "moth.cat({" .. at(c) .. "," .. at(c) .. "}):narrow(1,1,2)" }))
  elseif n <= 8 then
    what, text = "register_hook", ("h[%d] = %s:register_hook(function(g) %s end)"):format(c:int(8), at(c), body(c))
  elseif n == 9 then
    what, text = "remove", ("if h[%d] then h[%d]:remove() end"):format(c:int(8), c:int(8))
  elseif n <= 13 then
    what, text = "backward", ("G(%s, %s)"):format(at(c), c:pick({ "true", "false" }))
  elseif n == 14 then
    what, text = "double backward", ("GG(%s, %d)"):format(at(c), c:int(P.POOL))
  elseif n == 15 then
    what, text = "Function", own_function(c)
  elseif n == 16 then
    what, text = "module hook", ("h[%d] = m:register_%s_hook(function(_, g, o) %s end)"):format(c:int(8),
      c:pick({ "forward", "forward_pre", "full_backward", "full_backward_pre" }), body(c))
  elseif n == 17 then
    what, text = "coroutine", ("y[%d] = coroutine.wrap(function() %s coroutine.yield() %s end) y[%d]()"):format(
      c:int(4), c:pick({ ("G(%s, true)"):format(at(c)), ("local g = %s %s"):format(at(c), c:pick(deeds)(c)) }),
      c:pick({ ("G(%s)"):format(at(c)), "" }), c:int(4))
  elseif n == 18 then
    what, text = "in-place", ("%s:%s"):format(at(c), c:pick({ "mul_(2)",
      "add_(" .. at(c) .. ")", "narrow(1,1,1):zero_()",
      "copy_(" .. at(c) .. ")", "exp_()", "t():mul_(3)", "select(2,1):add_(1)", "zero_()" }))
  elseif n == 19 then
    what, text = "mode", in_mode(c)
  else
    what, text = "backward of several", ("moth.autograd.backward({%s:sum(), %s:sum()}, nil, {retain_graph=%s})"):format(
      at(c), at(c), c:pick({ "true", "false" }))
  end
  return head .. text, false, what
end
