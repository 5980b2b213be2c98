-- Derivative formulas. A formula is one Lua expression over the names of an op's arguments, `grad`, `grad1`
-- (of results 1, 2 …), `result`, `result1`; its functions are ops of the table or the helpers of
-- src/autograd/formulas.h. It is evaluated here, over proxies that write C. One formula for several arguments,
-- `["query, key"] = "name(…)"`, is one call of an op whose results are their gradients, in order, or of
-- moth_gradset_name, which makes those that are needed.
local schema = require "schema"

local M = {}

-- Proxies: `c` is a C expression of type MothValue, `kind` "tensor", "number" or "list".
local proxy = {}
local emit -- the emitter in use

local function is_proxy(x) return getmetatable(x) == proxy end

local function as_value(x)
  if is_proxy(x) then return x.c end
  if type(x) == "number" then
    if x == math.floor(x) then return ("moth_v_int(%d)"):format(x) end
    return ("moth_v_float(%.17g)"):format(x)
  end
  error("a formula holds a " .. type(x), 0)
end

local function call(name, ...)
  local args, n = {}, select("#", ...)
  for i = 1, n do args[i] = as_value((select(i, ...))) end
  return emit(name, args)
end

local function binary(op, number)
  return function(a, b)
    local tensor = (is_proxy(a) and a.kind == "tensor") or (is_proxy(b) and b.kind == "tensor")
    if tensor then return call(op, a, b) end
    return setmetatable({ c = ("moth_number_%s(%s, %s)"):format(number, as_value(a), as_value(b)), kind = "number" }, proxy)
  end
end

proxy.__add, proxy.__sub = binary("add", "add"), binary("sub", "sub")
proxy.__mul, proxy.__div = binary("mul", "mul"), binary("div", "div")
proxy.__unm = function(a) return call("neg", a) end
proxy.__index = function(p, field)
  local of = rawget(p, "fields")
  if of and of[field] then return of[field]() end
  return function(self, ...) return call(field, self, ...) end
end

local kind_of = {
  TENSOR = "tensor", OPERAND = "tensor", SCALAR = "number", INT = "number", DIM = "number", INDEX = "number",
  INDEX_BASE = "number", FLOAT = "number", BOOL = "number", INTS = "list", DIMS = "list", TENSORS = "list",
  STRING = "list", DTYPE = "number", DEVICE = "number", GENERATOR = "number",
}

--- The C function of an op's derivative, and what it saves.
-- @return text, saves_for ({ [arg] = mask of arguments (bits 0..15) and results (16..) }), geometry (bool),
-- differentiable (mask)
function M.backward(op, by_name, helpers)
  local saves_for, geometry, differentiable = {}, false, {}
  local ntemps, body, saved = 0, nil, nil -- luacheck: ignore 331 (read by closures)

  -- A saved value is loaded at its first use, within the block of the input that needs it.
  local used
  local function load_name(key, c)
    if not used[key] then
      used[key] = ("v[%d]"):format(ntemps)
      ntemps = ntemps + 1
      body[#body + 1] = ("    MOTH_GO(%s, &%s));"):format(c, used[key])
    end
    return used[key]
  end

  local function environment()
    local env = {}
    for _, a in ipairs(op.args) do
      local p = { kind = kind_of[a.type] }
      local at = a.at
      if a.type == "TENSOR" then
        p.fields = {
          shape = function() return setmetatable({ c = ("moth_node_shape(node, %d)"):format(at), kind = "list" }, proxy) end,
          stride = function() geometry = true; return setmetatable({ c = ("moth_node_stride(node, %d)"):format(at), kind = "list" }, proxy) end,
          offset = function() geometry = true; return setmetatable({ c = ("moth_node_offset(node, %d)"):format(at), kind = "number" }, proxy) end,
        }
      end
      env[a.name] = setmetatable({ lazy = function()
        saved[at] = true
        return load_name("arg" .. at, ("moth_node_arg(node, %d"):format(at))
      end, kind = p.kind, fields = p.fields }, proxy)
    end
    for i = 0, op.nresults - 1 do
      local suffix = i == 0 and "" or tostring(i)
      env["grad" .. suffix] = setmetatable({ c = ("moth_v_tensor(grads[%d])"):format(i), kind = "tensor" }, proxy)
      env["result" .. suffix] = setmetatable({ lazy = function()
        saved[16 + i] = true
        return load_name("result" .. i, ("moth_node_result(node, %d"):format(i))
      end, kind = "tensor" }, proxy)
    end
    setmetatable(env, { __index = function(_, name)
      if not by_name[name] and not helpers[name] then
        schema.fail(op, "the derivative uses '" .. name .. "', which is no argument, op or helper")
      end
      return function(...) return call(name, ...) end
    end })
    return env
  end

  -- `c` of a lazy proxy is made at first use.
  local function resolve(p)
    if rawget(p, "c") then return p end
    local lazy = rawget(p, "lazy")
    rawset(p, "c", lazy())
    return p
  end
  local plain_as_value = as_value
  local function value(x)
    if is_proxy(x) then return resolve(x).c end
    return plain_as_value(x)
  end
  as_value = value

  emit = function(name, args)
    local t = ("v[%d]"):format(ntemps)
    ntemps = ntemps + 1
    local list = "(MothValue[]){" .. table.concat(args, ", ") .. "}"
    if helpers[name] then
      body[#body + 1] = ("    MOTH_GO(moth_grad_%s(%s, &%s));"):format(name, list, t)
    else
      local target = by_name[name]
      if not target then schema.fail(op, "the derivative calls unknown '" .. name .. "'") end
      body[#body + 1] = ("    MOTH_GO(moth_eval(&moth_ops[MOTH_OP_%s], %d, %s, &%s));"):format(name, #args, list, t)
    end
    return setmetatable({ c = t, kind = "tensor" }, proxy)
  end

  local function mask_of(set)
    local m = 0
    for at in pairs(set) do m = m + 2 ^ at end
    return m
  end

  local text = {}
  -- Joint formulas; each of the arguments then has it as its own, for those who read the record.
  local joint, alone = {}, {}
  for names, formula in pairs(op.grad) do
    if names:find(",", 1, true) then joint[#joint + 1] = { names, formula } else alone[names] = formula end
  end
  table.sort(joint, function(a, b) return a[1] < b[1] end)
  for _, j in ipairs(joint) do
    local args, needed = {}, 0
    for name in j[1]:gmatch("[%w_]+") do
      local a = op.index[name] or schema.fail(op, "grad names '" .. name .. "', which is no argument")
      args[#args + 1] = a
      needed = needed + 2 ^ a.at
    end
    local target = j[2]:match("^([%w_]+)%(.*%)$")
    local set = helpers["set " .. tostring(target)]
    if not set and not (by_name[target] and by_name[target].nresults == #args) then
      schema.fail(op, "the derivative by " .. j[1] .. " must be a call of an op with as many results, or of a gradset")
    end
    body, used, saved = {}, {}, {}
    body[1] = ("  if (need & %du) { /* %s: %s */"):format(needed, j[1], j[2])
    local plain = emit
    local at
    emit = function(name, values)
      if name ~= target then return plain(name, values) end
      at = ntemps
      ntemps = ntemps + #args
      local list = ("(MothValue[]){%s}"):format(table.concat(values, ", "))
      body[#body + 1] = set and ("    MOTH_GO(moth_gradset_%s(%s, need, v + %d));"):format(name, list, at)
        or ("    MOTH_GO(moth_eval_all(&moth_ops[MOTH_OP_%s], %d, %s, v + %d));"):format(name, #values, list, at)
      return setmetatable({ c = ("v[%d]"):format(at), kind = "tensor" }, proxy)
    end
    local chunk = assert(loadstring("return " .. j[2], "=" .. op.place))
    local ok, err = pcall(setfenv(chunk, environment()))
    if not ok then schema.fail(op, "derivative of " .. j[1] .. ": " .. tostring(err)) end
    for i, a in ipairs(args) do
      body[#body + 1] = ("    if (need & %du)\n      out[moth_node_edge(node, %d)] = moth_take(&v[%d]);"):format(
        2 ^ a.at, a.at, at + i - 1)
      differentiable[a.at] = true
      saves_for[a.at] = mask_of(saved)
      op.grad[a.name] = j[2]
    end
    op.grad[j[1]] = nil
    body[#body + 1] = "  }"
    text[#text + 1] = table.concat(body, "\n")
    emit = plain
  end

  for _, a in ipairs(op.args) do
    local formula = alone[a.name]
    if formula then
      differentiable[a.at] = true
      body, used, saved = {}, {}, {}
      body[#body + 1] = ("  if (need & %du) { /* %s: %s */"):format(2 ^ a.at, a.name, formula)
      if formula == "unimplemented" then
        body[#body + 1] = ("    MOTH_GO(moth_unimplemented(\"%s\", \"%s\"));"):format(op.name, a.name)
      elseif a.type == "TENSORS" then
        local fn, given = formula:match("^([%w_]+)%(grad, " .. a.name .. ", (.+)%)$")
        if not fn then schema.fail(op, "the derivative of a list must be one helper(grad, " .. a.name .. ", …)") end
        local env = environment()
        local p = setfenv(assert(loadstring("return " .. given)), env)()
        local c = value(p) -- writes lines of its own
        body[#body + 1] = ("    MOTH_GO(moth_gradlist_%s(node, grads[0], %s, out));"):format(fn, c)
      else
        local chunk, err = loadstring("return " .. formula, "=" .. op.place)
        if not chunk then schema.fail(op, err) end
        local ok, p = pcall(setfenv(chunk, environment()))
        if not ok then schema.fail(op, "derivative of " .. a.name .. ": " .. tostring(p)) end
        local c = value(p)
        body[#body + 1] = ("    out[moth_node_edge(node, %d)] = %s(%s);"):format(a.at, c:match("^v%[%d+%]$") and "moth_take" or "moth_keep", c:match("^v%[%d+%]$") and "&" .. c or c)
      end
      body[#body + 1] = "  }"
      text[#text + 1] = table.concat(body, "\n")
      saves_for[a.at] = mask_of(saved)
    end
  end
  as_value = plain_as_value

  for name in pairs(op.grad) do
    if not op.index[name] then schema.fail(op, "grad names '" .. name .. "', which is no argument") end
  end

  local n = ntemps > 0 and ntemps or 1
  local c = { ("/* %s */"):format(op.place),
    ("static MothStatus backward_%s(MothNode *node, MothTensor *const *grads, uint32_t need, MothTensor **out) {"):format(op.name),
    ("  MothStatus status = MOTH_OK;\n  MothValue v[%d] = {{{0}, 0, 0}};\n  (void)node, (void)grads, (void)need, (void)out;"):format(n),
    table.concat(text, "\n"),
    ("  goto done;\ndone:\n  moth_drop_values(v, %d);\n  return status;\n}\n"):format(n) }
  return table.concat(c, "\n"), saves_for, geometry, mask_of(differentiable)
end

return M
