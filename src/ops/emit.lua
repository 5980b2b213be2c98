-- Writes the graph of an expression (expr.lua) as C: statements that fill temporaries v[…].
--
-- A node is emitted in the innermost block that contains all its uses, so that `when` computes one branch only; if only
-- parts of both branches use it, it is emitted in each of these parts. A temporary is released after its last use.
-- Numbers and conditions become C expressions where they are used.
local expr = require "expr"
local is_node = expr.is_node
local M = {}

-- Functions that make a list, which needs memory. All other lists are C expressions.
local list_makers = {
  list = true, join = true, first_n = true, last_n = true, drop_n = true, replace = true, insert = true, remove = true,
  ones_n = true, range = true, inverse = true, wide = true, kept = true, inferred = true, merged = true,
  others = true, window_out = true,
}
local function is_statement(node)
  return node.kind == "need" or node.what == "op" or node.what == "ops" or node.what == "load" or node.what == "beside"
    or node.what == "written" or node.what == "matched" or node.what == "fold" or list_makers[node.what]
    or (node.what == "when" and node.kind ~= "number" and node.kind ~= "condition" and node.kind ~= "string")
end

-- Whether argument k has a block of its own: a branch of `when`, the body of `fold`.
local function has_block(node, k)
  return node.what == "when" and k > 1 or node.what == "fold" and k == 3
end

local function common(a, b) -- the innermost block that contains both
  while a.depth > b.depth do a = a.parent end
  while b.depth > a.depth do b = b.parent end
  while a ~= b do a, b = a.parent, b.parent end
  return a
end

-- The blocks in which to emit a node that the blocks `uses` use: one, or several that exclude each other. A node needed
-- on only some paths through both branches of a `when` is computed on these paths.
local function standing(uses)
  local block = uses[1]
  for k = 2, #uses do block = common(block, uses[k]) end
  local branches, parts = {}, {}
  for _, use in ipairs(uses) do
    if use == block then return { block } end
    local branch = use
    while branch.parent ~= block do branch = branch.parent end
    if not parts[branch] then
      parts[branch] = {}
      branches[#branches + 1] = branch
    end
    table.insert(parts[branch], use)
  end
  if #branches ~= 2 or branches[1].of ~= branches[2].of then return { block } end
  local first, second = standing(parts[branches[1]]), standing(parts[branches[2]])
  if first[1] == branches[1] and second[1] == branches[2] then return { block } end
  for _, b in ipairs(second) do first[#first + 1] = b end
  return first
end

-- The blocks of each statement, with those of the branches of `when` and of the body of `fold`. Nodes come after their
-- arguments: going backwards, all uses of a node are known when it is reached.
local function place(graph, outputs)
  local root = { depth = 0, nodes = {} }
  local uses, blocks_of = {}, {} -- node -> the blocks that use it; node -> set of the blocks in which it is emitted
  local function use(x, block)
    if not is_node(x) then return end
    uses[x] = uses[x] or {}
    table.insert(uses[x], block)
  end
  for _, output in ipairs(outputs) do use(output, root) end
  for i = #graph, 1, -1 do
    local node = graph[i]
    local blocks = uses[node]
    if blocks and is_statement(node) then
      blocks_of[node] = {}
      for _, block in ipairs(standing(blocks)) do
        blocks_of[node][block] = true
        table.insert(block.nodes, 1, node)
        local branches = {}
        if node.what == "when" or node.what == "fold" then
          block.branches = block.branches or {}
          block.branches[node] = branches
        end
        for k, a in ipairs(node.args) do
          if has_block(node, k) then
            branches[k] = { depth = block.depth + 1, parent = block, nodes = {}, of = branches }
          end
          use(a, branches[k] or block)
        end
      end
    elseif blocks then
      for _, block in ipairs(blocks) do for _, a in ipairs(node.args) do use(a, block) end end
    end
  end
  return root, blocks_of
end

local function number_c(x)
  if x ~= x then return "moth_v_float(NAN)" end
  if math.abs(x) == math.huge then return x > 0 and "moth_v_float(INFINITY)" or "moth_v_float(-INFINITY)" end
  if x == math.floor(x) and math.abs(x) < 2 ^ 53 then return ("moth_v_int(%d)"):format(x) end
  return ("moth_v_float(%.17g)"):format(x)
end

--- state: { temps = count of v[…] so far, lists = count of lists } of the C function, which this increases (pure: it
-- makes no tensors);
-- M.declare(state) declares both.
-- Returns a writer: writer.value(node) is C of a value, writer.condition(node) of a condition; writer.block() returns
-- the lines of the root block, after which writer.take(node) moves an output out of its temporary (or retains it).
function M.writer(graph, outputs, state, indent)
  local root, blocks_of = place(graph, outputs)
  local at = {} -- node -> index of its temporary, or name of its list
  local twice, once = {}, {} -- outputs that are more than one
  for _, output in ipairs(outputs) do
    if is_node(output) then twice[output], once[output] = once[output], true end
  end
  local value, condition

  local function tensor_c(node) return value(node) .. ".u.t" end

  local inline = {
    leaf = function(n) return n.c end,
    none = function() return "moth_v_none()" end,
    result = function(n) return ("v[%d]"):format(at[n.args[1]] + n.more) end,
    shape = function(n) return ("moth_v_shape(%s)"):format(tensor_c(n.args[1])) end,
    stride = function(n) return ("moth_v_stride(%s)"):format(tensor_c(n.args[1])) end,
    ndim = function(n) return ("moth_v_int(%s->ndim)"):format(tensor_c(n.args[1])) end,
    numel = function(n) return ("moth_v_int(%s->numel)"):format(tensor_c(n.args[1])) end,
    dtype = function(n) return ("moth_v_dtype((MothDType)%s->dtype)"):format(tensor_c(n.args[1])) end,
    device = function(n) return ("moth_v_device(%s->device)"):format(tensor_c(n.args[1])) end,
    at = function(n)
      local i = n.args[2]
      return ("moth_list_at(%s, %s)"):format(value(n.args[1]), type(i) == "number" and i or value(i) .. ".u.i")
    end,
    length = function(n) return ("moth_v_int(%s.n)"):format(value(n.args[1])) end,
    least = function(n) return ("moth_list_least(%s)"):format(value(n.args[1])) end,
    doublings = function(n) return ("moth_number_doublings(%s)"):format(value(n.args[1])) end,
    param = function(n) return n.c end,
    tensors = function(n)
      local list = {}
      for i, a in ipairs(n.args) do list[i] = tensor_c(a) end
      return ("moth_v_tensors((MothTensor *[]){%s}, %d)"):format(table.concat(list, ", "), #list)
    end,
    product = function(n) return ("moth_list_product(%s)"):format(value(n.args[1])) end,
    largest = function(n) return ("moth_list_largest(%s)"):format(value(n.args[1])) end,
    default_dtype = function() return "moth_v_dtype(moth_default_dtype())" end,
    reach = function(n)
      return ("moth_list_reach(%s, %s, %s)"):format(value(n.args[1]), value(n.args[2]), value(n.args[3]))
    end,
    power_of = function(n)
      return ("moth_number_power(%s, %s)"):format(value(n.args[1]), value(n.args[2]))
    end,
    wrap = function(n) return ("moth_number_wrap(%s, %s)"):format(value(n.args[1]), value(n.args[2])) end,
    working = function(n) return ("moth_v_dtype(moth_working_dtype(%s))"):format(tensor_c(n.args[1])) end,
    real_of = function(n)
      return ("moth_v_dtype(moth_dtype_real((MothDType)%s->dtype))"):format(tensor_c(n.args[1]))
    end,
    complex_of = function(n)
      return ("moth_v_dtype(moth_dtype_complex((MothDType)%s->dtype))"):format(tensor_c(n.args[1]))
    end,
    eps_of = function(n) return ("moth_v_float(moth_dtype_epsilon((MothDType)%s->dtype))"):format(tensor_c(n.args[1])) end,
    log_of = function(n) return ("moth_v_float(log(moth_as_double(%s)))"):format(value(n.args[1])) end,
    dtype_named = function(n) return ("moth_v_dtype(MOTH_%s)"):format(n.more:upper()) end,
    as_number = function(n) return value(n.args[1]) end,
    default_to = function(n)
      return ("moth_value_or(%s, %s)"):format(value(n.args[1]), value(n.args[2]))
    end,
    when = function(n)
      return ("(%s ? %s : %s)"):format(condition(n.args[1]), value(n.args[2]), value(n.args[3]))
    end,
  }
  for _, name in ipairs({ "add", "sub", "mul", "div", "floor_divide", "remainder" }) do
    inline["number_" .. name] = function(n)
      return ("moth_number_%s(%s, %s)"):format(name, value(n.args[1]), value(n.args[2]))
    end
  end

  function value(x)
    if type(x) == "number" then return number_c(x) end
    if type(x) == "boolean" then return ("moth_v_bool(%s)"):format(tostring(x)) end
    if type(x) == "string" then return ("moth_v_string(%q)"):format(x) end
    if x.kind == "condition" then return ("moth_v_bool(%s)"):format(condition(x)) end
    if is_statement(x) then return type(at[x]) == "number" and ("v[%d]"):format(at[x]) or at[x] end
    return inline[x.what](x)
  end

  -- A number as an integer, where it surely is one.
  local whole = { ndim = true, numel = true, length = true }
  local function integer(x)
    if type(x) == "number" then return x == math.floor(x) and math.abs(x) < 2 ^ 31 and ("%d"):format(x) end
    if not is_node(x) or x.kind ~= "number" then return end
    if x.whole then return ("%s.u.i"):format(x.c) end
    if whole[x.what] then return value(x):match("^moth_v_int%((.*)%)$") end
    return x.what == "leaf" and value(x):match("^moth_v_int%(([%w_]+)%)$") -- a size of a shape rule
  end

  -- A number as a double, in the simplest C.
  local casts = { ndim = "", length = "", numel = "(double)", dtype = "(int)", working = "(int)", real_of = "(int)",
    complex_of = "(int)" }
  local function double(x)
    if type(x) == "number" then
      if math.abs(x) == math.huge then return x > 0 and "INFINITY" or "-INFINITY" end
      return x == math.floor(x) and ("%d"):format(x) or ("%.17g"):format(x)
    end
    if is_node(x) and casts[x.what] then
      return casts[x.what] .. value(x):match("^moth_v_%a+%((.*)%)$")
    end
    return ("moth_as_double(%s)"):format(value(x))
  end

  local function dtype_of(x) return x.kind == "number" and value(x) .. ".u.i" or tensor_c(x) .. "->dtype" end
  local operators = { eq = "==", ne = "!=", lt = "<", le = "<=", gt = ">", ge = ">=" }
  local conditions = {
    given = function(n) return ("%s.tag != MOTH_V_NONE"):format(value(n.args[1])) end,
    both = function(n) return ("%s && %s"):format(condition(n.args[1]), condition(n.args[2])) end,
    either = function(n) return ("%s || %s"):format(condition(n.args[1]), condition(n.args[2])) end,
    negate = function(n) return ("!%s"):format(condition(n.args[1])) end,
    is_float = function(n) return ("moth_dtype_is_float((MothDType)%s)"):format(dtype_of(n.args[1])) end,
    is_complex = function(n) return ("moth_dtype_is_complex((MothDType)%s)"):format(dtype_of(n.args[1])) end,
    is_int = function(n) return ("moth_dtype_class((MothDType)%s) == MOTH_CLASS_INT"):format(dtype_of(n.args[1])) end,
    bit = function(n) return ("%s.u.i >> %s.u.i & 1"):format(value(n.args[1]), value(n.args[2])) end,
    whole = function(n) return ("%s.tag != MOTH_V_FLOAT"):format(value(n.args[1])) end,
    expands = function(n) return ("moth_list_expands(%s, %s)"):format(value(n.args[1]), value(n.args[2])) end,
    is_number = function(n) return ("%s.tag != MOTH_V_TENSOR"):format(value(n.args[1])) end,
    is_list = function(n) return ("%s.tag == MOTH_V_INTS"):format(value(n.args[1])) end,
    is_on_cpu = function(n) return ("%s->device.type == MOTH_CPU"):format(tensor_c(n.args[1])) end,
    is_contiguous = function(n) return ("%s->contiguous"):format(tensor_c(n.args[1])) end,
    viewable = function(n) return ("moth_viewable(%s, %s)"):format(tensor_c(n.args[1]), value(n.args[2])) end,
    same_dtype = function(n) return ("%s->dtype == %s->dtype"):format(tensor_c(n.args[1]), tensor_c(n.args[2])) end,
    same_list = function(n) return ("moth_list_equal(%s, %s)"):format(value(n.args[1]), value(n.args[2])) end,
    overlaps = function(n) return ("moth_list_overlaps(%s, %s)"):format(value(n.args[1]), value(n.args[2])) end,
    records = function(n) return ("moth_value_records(%s)"):format(value(n.args[1])) end,
    needed = function(n) return ("need & %du"):format(n.more) end,
    text_eq = function(n) return ("!strcmp(%s.u.s, %s.u.s)"):format(value(n.args[1]), value(n.args[2])) end,
    text_ne = function(n) return ("strcmp(%s.u.s, %s.u.s)"):format(value(n.args[1]), value(n.args[2])) end,
  }
  for name, operator in pairs(operators) do
    conditions["cond_" .. name] = function(n)
      local a, b = integer(n.args[1]), integer(n.args[2])
      return ("%s %s %s"):format(a and b and a or double(n.args[1]), operator, a and b or double(n.args[2]))
    end
  end
  function condition(x)
    if type(x) == "boolean" then return tostring(x) end
    if x.kind == "number" then return ("(%s != 0)"):format(double(x)) end
    if x.what == "when" then
      return ("(%s ? %s : %s)"):format(condition(x.args[1]), condition(x.args[2]), condition(x.args[3]))
    end
    return "(" .. conditions[x.what](x) .. ")"
  end

  -- The statement nodes that a value is read from.
  local function sources(x, out)
    if not is_node(x) then return out end
    if is_statement(x) then out[#out + 1] = x
    else for _, a in ipairs(x.args) do sources(a, out) end end
    return out
  end

  local function owns(node) -- a tensor in v[…]
    return type(at[node]) == "number"
  end

  -- C that takes ownership of the value of x: moved if x belongs to `block` and is not read again, else retained.
  local function taken(x, block)
    if is_node(x) and (x.kind == "tensor" or x.kind == "any") then
      if is_statement(x) and owns(x) and blocks_of[x][block] and not (block == root and twice[x]) then
        return ("moth_v_tensor(moth_take_value(&v[%d]))"):format(at[x])
      end
      if x.what == "result" and blocks_of[x.args[1]][block] and not (block == root and twice[x]) then
        return ("moth_v_tensor(moth_take_value(&v[%d]))"):format(at[x.args[1]] + x.more)
      end
      return ("moth_value_keep(%s)"):format(value(x))
    end
    return value(x)
  end

  local lines = {}
  local function line(depth, text, ...)
    lines[#lines + 1] = ("  "):rep(depth) .. (select("#", ...) > 0 and text:format(...) or text)
  end

  local write_block

  local function write_node(node, depth, here)
    local args = {}
    local of_op = node.what == "op" or node.what == "ops" or node.what == "beside"
    local op, before = of_op and graph.ops and graph.ops[node.more], node.what == "beside" and 1 or 0
    for i, a in ipairs(node.what ~= "when" and node.what ~= "fold" and node.args or {}) do
      args[i] = value(a)
      -- The op's argument is a double: converts an integer.
      local number = type(a) == "number" or (is_node(a) and a.kind == "number")
      local taken_as = op and op.args[i - before]
      if taken_as and taken_as.type == "FLOAT" and number then
        args[i] = ("moth_v_float(moth_as_double(%s))"):format(args[i])
      end
    end
    if node.kind == "need" then return line(depth, "MOTH_GO(moth_need_%s(%s));", node.what, table.concat(args, ", ")) end
    local given = ("(MothValue[]){%s}"):format(table.concat(args, ", "))
    if list_makers[node.what] or (node.what == "when" and node.kind == "list") then
      state.lists = state.lists + 1
      local index = state.lists
      local name = "h" .. index
      local function memory() -- the list has numbers of its own
        state.memory = state.memory or {}
        state.memory[index] = true
      end
      if node.what ~= "when" then memory() end
      at[node] = name
      if node.what == "when" then
        line(depth, "if %s {", condition(node.args[1]))
        for i = 2, 3 do
          local list = node.args[i]
          write_block(here.branches[node][i], depth + 1, list)
          -- The tensor of a shape may be released before the list is read. Arguments and lists that are made stay.
          if is_node(list) and (list_makers[list.what] or state.pure) then
            line(depth + 1, "%s = %s;", name, value(list))
          else
            memory()
            line(depth + 1, "MOTH_GO(moth_list_copy(%s, l%d, &%s));", value(list), index, name)
          end
          line(depth, i == 2 and "} else {" or "}")
        end
      elseif node.what == "list" then
        line(depth, "MOTH_GO(moth_list_make(%d, %s, l%d, &%s));", #args, given, index, name)
      else
        line(depth, "MOTH_GO(moth_list_%s(%s, l%d, &%s));", node.what, table.concat(args, ", "), index, name)
      end
      return
    end
    local k = state.temps
    at[node] = k
    state.temps = k + (node.what == "ops" and node.count or 1)
    if node.what == "op" and graph.helpers and graph.helpers[node.more] then
      line(depth, "MOTH_GO(%s(%s, &v[%d]));", graph.helpers[node.more], given, k)
    elseif node.what == "op" then
      line(depth, "MOTH_GO(moth_eval(MOTH_OP(%s), %d, %s, &v[%d]));", node.more, #args, given, k)
    elseif node.what == "ops" then
      line(depth, "MOTH_GO(moth_eval_all(MOTH_OP(%s), %d, %s, v + %d));", node.more, #args, given, k)
    elseif node.what == "beside" then
      local like = table.remove(args, 1)
      line(depth, "MOTH_GO(moth_eval_beside(%s.u.t, MOTH_OP(%s), %d, (MothValue[]){%s}, &v[%d]));", like, node.more,
        #args, table.concat(args, ", "), k)
    elseif node.what == "fold" then
      local block = here.branches[node][3]
      node.acc.c, node.k.c = ("v[%d]"):format(k), ("moth_v_int(k%d)"):format(k)
      line(depth, "v[%d] = moth_value_keep(%s);", k, value(node.args[1]))
      line(depth, "for (int64_t k%d = 0, n%d = (int64_t)%s; k%d < n%d; k%d++) {", k, k, double(node.args[2]), k, k, k)
      write_block(block, depth + 1, node.args[3])
      line(depth + 1, "MothValue made%d = %s;", k, taken(node.args[3], block))
      line(depth + 1, "moth_drop(&v[%d]);", k)
      line(depth + 1, "v[%d] = made%d;", k, k)
      line(depth, "}")
    elseif node.what == "matched" then
      local made = table.remove(args, 1)
      line(depth, "v[%d] = moth_value_keep(%s);", k, made)
      line(depth, "MOTH_GO(moth_match_batch(&v[%d], %d, (MothValue[]){%s}));", k, #args, table.concat(args, ", "))
    elseif node.what == "written" then
      line(depth, "v[%d] = moth_value_keep(%s);", k, args[1])
    elseif node.what == "load" then
      line(depth, "MOTH_GO(%s, &v[%d]));", node.more, k)
      if node.on_write then node.on_write() end
    else
      line(depth, "if %s {", condition(node.args[1]))
      for i = 2, 3 do
        local block = here.branches[node][i]
        write_block(block, depth + 1, node.args[i])
        line(depth + 1, "v[%d] = %s;", k, taken(node.args[i], block))
        line(depth, i == 2 and "} else {" or "}")
      end
    end
  end

  -- Marks the last statement of a block that reads each temporary of it.
  local function last_reads(block, result)
    local last = {}
    local function read(x, i)
      for _, s in ipairs(sources(x, {})) do
        if blocks_of[s][block] then
          last[s] = i
        end
      end
    end
    local function inside(inner, i)
      for _, node in ipairs(inner.nodes) do
        for k, a in ipairs(node.args) do
          if has_block(node, k) then inside(inner.branches[node][k], i) end
          read(a, i)
        end
      end
    end
    for i, node in ipairs(block.nodes) do inside({ nodes = { node }, branches = block.branches }, i) end
    if result then read(result, math.huge) end
    return last
  end

  function write_block(block, depth, result)
    local last = last_reads(block, result)
    for _, output in ipairs(block == root and outputs or {}) do
      for _, s in ipairs(sources(output, {})) do last[s] = math.huge end
    end
    for i, node in ipairs(block.nodes) do
      write_node(node, depth, block)
      for _, s in ipairs(block.nodes) do
        if last[s] == i and owns(s) then
          for r = 0, s.what == "ops" and s.count - 1 or 0 do line(depth, "moth_drop(&v[%d]);", at[s] + r) end
        end
      end
      if owns(node) and last[node] == nil then line(depth, "moth_drop(&v[%d]);", at[node]) end
    end
  end

  local writer = { value = function(x) return value(x) end, condition = function(x) return condition(x) end }
  function writer.block()
    write_block(root, indent or 1)
    return lines
  end
  function writer.take(x) return taken(x, root) end
  return writer
end

--- The declarations of a function's temporaries and lists.
function M.declare(state)
  local t = { ("  MothValue v[%d] = {{{0}, 0, 0}};"):format(math.max(1, state.temps)) }
  for i = 1, state.lists do
    if state.memory and state.memory[i] then t[#t + 1] = ("  int64_t l%d[MOTH_LIST_MAX];"):format(i) end
    t[#t + 1] = ("  MothValue h%d = {{0}, 0, 0};"):format(i)
  end
  return table.concat(t, "\n")
end

return M
