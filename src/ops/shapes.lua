-- Writes the shape rules that records give by patterns (patterns.lua) or by their kind as C functions:
-- build/gen/shapes.c. What they call is in src/dispatch/pattern.h.
local define = require "define"
local emit = require "emit"
local expr = require "expr"
local formula = require "formula"
local kinds = require "kinds"
local patterns = require "patterns"
local schema = require "schema"

local M = {}

-- ---- expressions -----------------------------------------------------------------------------------

local makes_tensors = { op = true, ops = true, beside = true, written = true, fold = true }

local dtype_kinds = { dtype = true, working = true, real_of = true, complex_of = true, dtype_named = true,
  default_dtype = true }
-- Is the value of a node a dtype?
local function is_dtype(x)
  if not expr.is_node(x) then return false end
  if x.what == "default_to" then return is_dtype(x.args[2]) end
  if x.what == "when" then return is_dtype(x.args[2]) or is_dtype(x.args[3]) end
  return x.is_dtype or dtype_kinds[x.what]
end

-- The nodes of a text: their values may be computed by writer.
local function evaluate(f, what, text)
  local graph
  graph = expr.graph(function(name)
    local known, a = f.rule.names[name], f.op.index[name]
    if known then
      if known.element then error(("'%s' is a size of each tensor of '%s'"):format(name, known.element), 0) end
      if known.optional then error(("'%s' is known only if '%s' is given"):format(name, known.from), 0) end
      local leaf = graph.node("leaf", known.kind, {}, name)
      leaf.c = known.c or known.kind == "list" and "d_" .. name or ("moth_v_int(s_%s)"):format(name)
      leaf.is_dtype = known.is_dtype or false
      return leaf
    elseif a then
      local leaf = graph.node("leaf", formula.kind_of[a.type], {}, name)
      leaf.c, leaf.values = ("c->args[%d]"):format(a.at), a.values or false
      leaf.position, leaf.is_dtype = a.type == "DIM" or a.type == "INDEX", a.type == "DTYPE"
      leaf.whole = a.type == "INT" and not a.optional
      return leaf
    end
  end, {}, define)
  local ok, values = pcall(graph.evaluate, text, f.op.place)
  if not ok then schema.fail(f.op, what .. ": " .. tostring(values)) end
  for i = 1, #graph do
    if makes_tensors[graph[i].what] then
      schema.fail(f.op, ("%s: '%s': a shape rule computes no tensors"):format(what, text))
    end
  end
  return graph, values
end

local function line(f, text, ...)
  f.lines[#f.lines + 1] = "  " .. (select("#", ...) > 0 and text:format(...) or text)
end

-- A line that is needed only if others read the variable.
local function bind(f, variable, text, ...)
  line(f, text, ...)
  f.binds[#f.lines] = variable
end

-- C of the first value of a text, after the statements that it needs; the node.
local function value_c(f, what, text)
  local graph, values = evaluate(f, what, text)
  local writer = emit.writer(graph, values, f.state, 1)
  for _, l in ipairs(writer.block()) do line(f, (l:gsub("^  ", ""):gsub("MOTH_GO", "MOTH_TRY"))) end
  return writer.value(values[1]), values[1]
end

local kind_of = expr.kind_of

local function integer(c)
  return c:match("^moth_v_int%(([%w_>%-]+)%)$") or c:match("^moth_v_int%((%-?%d+)%)$") or c .. ".u.i"
end

-- ---- arguments -------------------------------------------------------------------------------------

local function size_c(name) return "s_" .. name end
local function list_c(name) return "d_" .. (name == "*" and "any" or name) end

-- How C reads an argument that has a pattern.
local function geometry(a)
  if a.type == "INTS" then
    local c = ("c->args[%d]"):format(a.at)
    return "(int)" .. c .. ".n", c .. ".u.ints"
  end
  return ("t_%s->ndim"):format(a.name), ("t_%s->shape"):format(a.name)
end

-- What the error of a pattern may say: what its names stand for.
local function known_c(f, input)
  local parts, seen, bound = {}, {}, {}
  for _, word in ipairs(input.words) do
    local name = word.name or word.star
    local known = name and f.rule.names[name]
    if word.binds and not word.length then bound[name] = true end -- by this pattern, which does not fit
    if known and not seen[name] and not bound[name] then
      seen[name] = true
      local c = known.c or known.kind == "list" and list_c(name) or ("moth_v_int(%s)"):format(size_c(name))
      if word.binds then c = ("moth_v_int(l_%s)"):format(name) end -- its length
      parts[#parts + 1] = ("{%q, %q, %s}"):format(name, word.binds and "" or known.from == "let" and "" or known.from, c)
    end
  end
  if #parts == 0 then return "NULL, 0" end
  return ("(MothKnown[]){%s}, %d"):format(table.concat(parts, ", "), #parts)
end

-- C of a number of dimensions: a constant and lists.
local function sum_c(n, lists)
  local parts = {}
  if n > 0 or #lists == 0 then parts[1] = tostring(n) end
  for _, l in ipairs(lists) do parts[#parts + 1] = l end
  return table.concat(parts, " + ")
end

-- How many dimensions the words from … to take: a number, and C of the lists.
local function extent(words, from, to)
  local n, lists = 0, {}
  for i = from, to do
    local word = words[i]
    if not word.star then
      n = n + 1
    elseif word.length then
      lists[#lists + 1] = "l_" .. word.star
    elseif not word.open then
      lists[#lists + 1] = "(int64_t)" .. list_c(word.star) .. ".n"
    end
  end
  return n, lists
end

-- Matches an argument: sizes that are known are compared, new ones bound.
local function match(f, input)
  local a, words = input.arg, input.words
  local optional = a.optional or a.type == "OPERAND" or (a.type == "TENSORS" and input ~= f.rule.lists[1])
  local ndim, shape = geometry(a)
  local open -- the part of unknown length
  for i, word in ipairs(words) do
    word.open = word.star and word.binds and not word.length or false
    if word.open then open = i end
  end
  local begin = #f.lines
  if a.type == "TENSORS" then
    if optional then line(f, "if (k < c->args[%d].n) {", a.at) end
    line(f, "const MothTensor *t_%s = c->args[%d].u.tensors[k];", a.name, a.at)
  elseif optional then
    line(f, "if (c->args[%d].tag == %s) {", a.at, a.type == "INTS" and "MOTH_V_INTS" or "MOTH_V_TENSOR")
    if a.type ~= "INTS" then bind(f, "t_" .. a.name, "const MothTensor *t_%s = c->args[%d].u.t;", a.name, a.at) end
  end
  local tests = {} -- C of what is wrong
  for _, word in ipairs(words) do
    if word.length then
      local c, node = value_c(f, "dims." .. a.name, word.length)
      if kind_of(node) ~= "number" then schema.fail(f.op, ("dims.%s: '%s' is no number"):format(a.name, word.length)) end
      line(f, "const int64_t l_%s = %s;", word.star, integer(c))
      tests[#tests + 1] = ("l_%s < 0"):format(word.star)
    end
  end
  local fixed, lists = extent(words, 1, #words)
  local least = sum_c(fixed, lists)
  local most = not open and least or words[open].one and sum_c(fixed + 1, lists) or "-1"
  if not open then
    tests[#tests + 1] = ("%s != %s"):format(ndim, least)
  elseif words[open].one then
    tests[#tests + 1] = ("(%s != %s && %s != %s)"):format(ndim, least, ndim, most)
  elseif least ~= "0" then
    tests[#tests + 1] = ("%s < %s"):format(ndim, least)
  end
  -- Where word i begins: counted from the end behind the part of unknown length.
  local function position(i)
    if not open or i <= open then return sum_c(extent(words, 1, i - 1)) end
    local n, rest = extent(words, i, #words)
    return ndim .. " - " .. (#rest > 0 and "(" .. sum_c(n, rest) .. ")" or tostring(n))
  end
  local binds, again, fresh = {}, {}, {} -- again: names that this pattern binds, and has once more
  for i, word in ipairs(words) do
    local name, at = word.name or word.star, position(i)
    local size = ("%s[%s]"):format(shape, at)
    local where = at == "0" and shape or ("%s + %s"):format(shape, at)
    if word.number then
      tests[#tests + 1] = ("%s != %d"):format(size, word.number)
    elseif word.binds then
      fresh[name] = true
      local rest = tonumber(least) and least or "(" .. least .. ")"
      local length = word.open and (least == "0" and ndim or ndim .. " - " .. rest) or "l_" .. name
      binds[#binds + 1] = word.star and { list_c(name), ("moth_v_ints(%s, (uint32_t)(%s))"):format(where, length) }
        or { size_c(name), size }
    else
      local known = f.rule.names[name]
      local c = word.star and (known.c or list_c(name)) or known.c and integer(known.c) or size_c(name)
      local test = (word.star and "!moth_same_dims(%s, %s)" or "%s != %s"):format(word.star and where or size, c)
      if word.maybe then
        test = ("(%s >= 0 && %s)"):format(c, test)
        binds[#binds + 1] = { c, size }
      end
      table.insert(fresh[name] and again or tests, test)
    end
  end
  local function refuse(list)
    if #list == 0 then return end
    local product = f.contract and f.contract[a.name] or ""
    line(f, "if (%s)", table.concat(list, " || "))
    local function int(c) return tonumber(c) and c or ("(int)(%s)"):format(c) end
    line(f, "  return moth_%s_wrong(%s%q, %s, %s, %s, %s, %q, %s);", product ~= "" and "product" or "shape", product, a.name,
      ndim, shape, int(least), int(most), input.text, known_c(f, input))
  end
  refuse(tests)
  for _, b in ipairs(binds) do
    local variable, is_size = b[1], b[1]:find("^s_") ~= nil
    if f.declared[variable] or optional then
      f.early[variable] = is_size and ("int64_t %s = -1;"):format(variable) or ("MothValue %s = moth_v_none();"):format(variable)
      bind(f, variable, "%s = %s;", variable, b[2])
    else
      bind(f, variable, "const %s %s = %s;", is_size and "int64_t" or "MothValue", variable, b[2])
    end
    f.declared[variable] = true
  end
  if #again > 0 then -- what was bound is known in the message
    for _, word in ipairs(words) do word.binds = nil end
    refuse(again)
  end
  if input.dtype then
    local other = f.op.index[input.dtype]
    local own = ("t_%s->dtype"):format(a.name)
    if other then
      line(f, "if (%s != t_%s->dtype)", own, other.name)
      line(f, "  return moth_dtypes_differ(%q, t_%s, %q, t_%s);", other.name, other.name, a.name, a.name)
    elseif input.dtype == "inexact" then
      line(f, "if (!moth_dtype_is_inexact((MothDType)%s))", own)
      line(f, "  return moth_dtype_wrong(%q, t_%s, \"a float or complex\");", a.name, a.name)
    elseif patterns.is_class(input.dtype) then
      line(f, "if (moth_dtype_class((MothDType)%s) != MOTH_CLASS_%s)", own, input.dtype:upper())
      line(f, "  return moth_dtype_wrong(%q, t_%s, \"a %s\");", a.name, a.name, input.dtype)
    else
      line(f, "if (%s != MOTH_%s)", own, input.dtype:upper())
      line(f, "  return moth_dtype_wrong(%q, t_%s, %q);", a.name, a.name, "the " .. input.dtype)
    end
  end
  if optional then
    for i = begin + 2, #f.lines do f.lines[i] = "  " .. f.lines[i] end
    line(f, "}")
  end
end

-- Lists of tensors: as many as the first has, or none, and each tensor matched with those at its place.
local function match_lists(f)
  local lists = f.rule.lists
  local first = lists[1] and lists[1].arg
  for i = 2, #lists do
    local a = lists[i].arg
    line(f, "if (c->args[%d].n && c->args[%d].n != c->args[%d].n)", a.at, a.at, first.at)
    line(f, "  return moth_list_wrong(%q, c->args[%d].n, %q, c->args[%d].n);", first.name, first.at, a.name, a.at)
  end
  if not first then return end
  line(f, "for (uint32_t k = 0; k < c->args[%d].n; k++) {", first.at)
  local begin = #f.lines
  for _, input in ipairs(lists) do match(f, input) end
  for i = begin + 1, #f.lines do f.lines[i] = "  " .. f.lines[i] end
  line(f, "}")
end

-- ---- conditions ------------------------------------------------------------------------------------

-- The C format of a value in a message, and the C expression for it.
local function shown(node, writer)
  local c = writer.value(node)
  if is_dtype(node) then return "%s", ("moth_dtype_name((MothDType)(%s).u.i)"):format(c) end
  if kind_of(node) == "list" then
    return "%s", ("moth_shape_format((int)(%s).n, (%s).u.ints, (char[200]){0}, 200)"):format(c, c)
  end
  if expr.is_node(node) and node.position then return "\1%d", ("(int)%s.u.i"):format(c) end -- MOTH_AT
  if expr.is_node(node) and (node.what == "ndim" or node.what == "length") then return "%d", ("(int)%s.u.i"):format(c) end
  if expr.is_node(node) and node.whole then return "%lld", ("(long long)%s.u.i"):format(c) end
  if kind_of(node) == "string" then return "%s", ("(%s).u.s"):format(c) end
  return "%.14g", ("moth_as_double(%s)"):format(c)
end

--- Writes an entry of `check`: { condition, message[, "type"] }, or a call that has its own message. evaluate_(text)
-- returns a graph and its values, add(line) takes C, state is emit's.
function M.condition(op, check, state, evaluate_, add)
  local alone = type(check) == "string"
  local text = alone and check or check[1]
  local graph, values = evaluate_(text)
  local kind = kind_of(values[1])
  if alone and kind ~= "need" then
    schema.fail(op, ("check: '%s' is no condition with a message, and no function that has its own"):format(text))
  elseif not alone and kind ~= "condition" and kind ~= "number" and kind ~= "boolean" then
    schema.fail(op, ("check: '%s' is a %s, no condition"):format(text, kind))
  end
  local writer = emit.writer(graph, { values[1] }, state, 1)
  for _, l in ipairs(writer.block()) do add(l) end
  if alone then return end
  add(("  if (!%s) {"):format(writer.condition(values[1])))
  local args = {}
  local message = check[2]:gsub("%%", "%%%%"):gsub("{(.-)}", function(part)
    local g, v = evaluate_(part)
    local w = emit.writer(g, { v[1] }, state, 2)
    for _, l in ipairs(w.block()) do add(l) end
    local format, c = shown(v[1], w)
    args[#args + 1] = ",\n                         " .. c
    return format
  end)
  add(("    MOTH_GO(moth_fail(%s, %q%s));\n  }"):format(check[3] == "type" and "MOTH_ERR_TYPE" or "MOTH_ERR_VALUE", message,
    table.concat(args)))
end

local function conditions(f, list)
  for _, check in ipairs(list) do
    M.condition(f.op, check, f.state, function(text) return evaluate(f, "check", text) end,
      function(l) f.lines[#f.lines + 1] = l:gsub("MOTH_GO", "MOTH_TRY") end)
  end
end

-- ---- results ---------------------------------------------------------------------------------------

local function dtype_c(f, what, text)
  if patterns.dtypes[text] then return "MOTH_" .. text:upper() end
  local a = f.op.index[text]
  if a and a.type == "TENSOR" then return ("(MothDType)c->args[%d].u.t->dtype"):format(a.at) end
  local c, node = value_c(f, what, text)
  if not is_dtype(node) then schema.fail(f.op, ("%s: '%s' is no dtype"):format(what, text)) end
  return ("(MothDType)%s.u.i"):format(c)
end

-- The dtype of a result that says none: the first tensor's, of a factory the option's or the default.
local function natural_dtype(f)
  for _, a in ipairs(f.op.args) do
    if a.type == "TENSOR" and not a.optional then return ("(MothDType)c->args[%d].u.t->dtype"):format(a.at) end
  end
  return dtype_c(f, "out", f.op.index.dtype and "default_to(dtype, default_dtype())" or "default_dtype()")
end

-- C of a word of a result, and whether it is a list.
local function word_c(f, word)
  local name = word.name or word.star
  local known = name and f.rule.names[name]
  if known and known.kind == "list" then return known.c or list_c(name), true end
  if known then return known.c and integer(known.c) or size_c(name), false end
  if word.number then return tostring(word.number), false end
  local c, node = value_c(f, "out", word.expression or name)
  local kind = kind_of(node)
  local wanted = word.star and "list" or word.name and "number" or kind
  if kind ~= wanted or (kind ~= "number" and kind ~= "list") or (expr.is_node(node) and node.what == "number_div") then
    schema.fail(f.op, ("out: '%s' is no %s"):format(word.text, word.star and "list" or "size"))
  end
  if kind == "list" then return c, true end
  return integer(c), false
end

-- The tensor whose shape has the same pattern.
local function same_as(f, output)
  for _, list in ipairs { f.rule.inputs, f.rule.later } do
    for _, input in ipairs(list) do
      if input.arg.type == "TENSOR" and not input.arg.optional and input.text == output.text then
        return input.arg
      end
    end
  end
end

local function result(f, i, output)
  local dtype = output.dtype and dtype_c(f, "out", output.dtype) or natural_dtype(f)
  local meta = i == 1 and "out" or ("out + %d"):format(i - 1)
  local like = same_as(f, output)
  if like then return line(f, "MOTH_TRY(moth_meta_set(%s, %s, t_%s->ndim, t_%s->shape));", meta, dtype, like.name, like.name) end
  local parts, lists = {}, 0
  for k, word in ipairs(output.words) do
    local c, list = word_c(f, word)
    parts[k] = { c, list }
    if list then lists = lists + 1 end
  end
  if lists == 1 and #parts == 1 then
    return line(f, "MOTH_TRY(moth_meta_set(%s, %s, (int)%s.n, %s.u.ints));", meta, dtype, parts[1][1], parts[1][1])
  elseif lists == 0 then
    local sizes = {}
    for k, p in ipairs(parts) do sizes[k] = p[1] end
    return line(f, "MOTH_TRY(moth_meta_set(%s, %s, %d, %s));", meta, dtype, #sizes,
      #sizes > 0 and "(const int64_t[]){" .. table.concat(sizes, ", ") .. "}" or "NULL")
  end
  line(f, "MOTH_TRY(moth_meta_set(%s, %s, 0, NULL));", meta, dtype)
  for _, p in ipairs(parts) do
    line(f, p[2] and "MOTH_TRY(moth_meta_add_dims(%s, %s));" or "MOTH_TRY(moth_meta_add_size(%s, %s));", meta, p[1])
  end
end

-- ---- rules of kinds --------------------------------------------------------------------------------

-- A product has the patterns of its contraction: letters of `contract`, in capitals.
local function of_contraction(op, f)
  local a, first, b, second, right = op.contract:match("^([%w_]+) ([%a*]+), ([%w_]+) ([%a*]+) %-> ([%a*]+)$")
  local function spaced(letters) return (letters:upper():gsub(".", "%0 "):gsub(" $", "")) end
  local dims = { [a] = spaced(first), [b] = spaced(second) .. " : " .. a }
  for name, text in pairs(op.dims or {}) do
    if dims[name] then schema.fail(op, ("dims.%s: contract gives it"):format(name)) end
    dims[name] = text
  end
  f.contract = { [b] = ("%q, t_%s, "):format(a, a) }
  f.product = a
  return dims, spaced(right)
end

local function dtypes_of(f)
  local texts = type(f.op.out) == "table" and f.op.out or { f.op.out }
  local list = {}
  for i = 1, f.op.nresults do list[i] = texts[i] and dtype_c(f, "out", texts[i]) or natural_dtype(f) end
  return list
end

-- A reduction: its first tensor without the dimensions of `dim`, or with 1 for them.
local needs_elements = { max = true, min = true, argmax = true, argmin = true }
local function reduced(f)
  local op = f.op
  for i, dtype in ipairs(dtypes_of(f)) do
    line(f, "MOTH_TRY(moth_meta_reduced(%s, %s, c->args[0].u.t, c->args[%d], c->args[%d].u.b, %s));", i == 1 and "out" or "out + 1", dtype,
      op.index.dim.at, op.index.keepdim.at, tostring(needs_elements[op.join] or false))
  end
end

-- ---- the whole function ----------------------------------------------------------------------------

--- The function of a record that has no C rule.
function M.text(op)
  local f = { op = op, lines = {}, binds = {}, declared = {}, early = {}, state = { temps = 0, lists = 0, pure = true } }
  local source = { index = op.index, args = op.args, nresults = op.nresults, dims = op.dims, let = op.let, check = op.check,
    out = op.out }
  if op.kind == "matmul" then source.dims, source.out = of_contraction(op, f) end
  if kinds.gives_shape(op) and op.kind ~= "matmul" then source.out = nil end
  local ok, rule = pcall(patterns.read, source)
  if not ok then schema.fail(op, rule) end
  f.rule = rule
  for _, name in ipairs({ "device" }) do
    local a = op.index[name]
    if a and a.type == "DEVICE" then line(f, "MOTH_TRY(moth_meta_device(out, c->args[%d]));", a.at) end
  end
  conditions(f, rule.first)
  for _, input in ipairs(rule.inputs) do
    match(f, input)
    if f.product == input.arg.name then
      line(f, "if (t_%s->dtype == MOTH_BOOL)", f.product)
      line(f, "  return moth_fail(MOTH_ERR_TYPE, \"not implemented for bool\");")
    end
  end
  for _, let in ipairs(rule.lets) do
    local c, node = value_c(f, "let " .. let.name, let.text)
    local known = rule.names[let.name]
    if kind_of(node) ~= known.kind then
      schema.fail(op, ("let %s: a %s is expected, got a %s"):format(let.name, known.kind, kind_of(node)))
    end
    known.c, known.is_dtype = (let.star and "d_" or "v_") .. let.name, is_dtype(node)
    bind(f, known.c, "const MothValue %s = %s;", known.c, c)
  end
  for _, input in ipairs(rule.later) do match(f, input) end
  match_lists(f)
  conditions(f, rule.checks)
  if op.returns_self then
    line(f, "MOTH_TRY(moth_shape_self(c, out));")
  elseif op.kind == "reduce" then
    reduced(f)
  elseif op.kind == "scan" then
    line(f, "MOTH_TRY(moth_meta_set(out, %s, c->args[0].u.t->ndim, c->args[0].u.t->shape));", dtypes_of(f)[1])
  else
    for i, output in ipairs(rule.outputs) do result(f, i, output) end
  end
  if op.nresults == 0 then line(f, "(void)out;") end
  -- Without what nothing reads.
  local function used(variable, own)
    for i, l in ipairs(f.lines) do
      if i ~= own and l:find("%f[%w_]" .. variable .. "%f[^%w_]") and f.binds[i] ~= variable then return true end
    end
    return false
  end
  local changed = true
  while changed do
    changed = false
    for i, variable in pairs(f.binds) do
      if not used(variable, i) then
        local list = f.lines[i]:match("= (h%d+);$") -- a list that is made only to see whether it can be
        f.lines[i], changed = list and ("  (void)%s;"):format(list) or "", true
        f.binds[i] = nil
        f.early[variable] = nil
      end
    end
  end
  local head = {}
  for _, a in ipairs(op.args) do
    if a.type == "TENSOR" and not a.optional and used("t_" .. a.name) then
      head[#head + 1] = ("  const MothTensor *t_%s = c->args[%d].u.t;"):format(a.name, a.at)
    end
  end
  local names = {}
  for variable in pairs(f.early) do names[#names + 1] = variable end
  table.sort(names)
  for _, variable in ipairs(names) do head[#head + 1] = "  " .. f.early[variable] end
  for i = 1, f.state.lists do
    if f.state.memory and f.state.memory[i] then head[#head + 1] = ("  int64_t l%d[MOTH_LIST_MAX];"):format(i) end
    head[#head + 1] = ("  MothValue h%d = {{0}, 0, 0};"):format(i)
  end
  local body = {}
  for _, l in ipairs(f.lines) do if l ~= "" then body[#body + 1] = l end end
  local text = table.concat({ ("/* %s */"):format(op.place), ("MothStatus moth_shape_%s(const MothCall *c, MothMeta *out);"):format(op.name),
    ("MothStatus moth_shape_%s(const MothCall *c, MothMeta *out) {"):format(op.name), table.concat(head, "\n"),
    table.concat(body, "\n"), "  return MOTH_OK;\n}\n" }, "\n")
  return (text:gsub("{\n\n", "{\n"))
end

return M
