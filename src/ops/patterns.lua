-- Shape rules as patterns: dims = { x = "N C *", weight = "C : x" }, out = "N C *". The build writes them as C
-- (shapes.lua), moth.library runs them for ops that are defined at run time (lua/moth/library/patterns.lua).
--
-- A pattern is a list of words for the dimensions of a tensor, or for the numbers of an int[] that is a size:
--   N          a size: the same name stands for the same number everywhere
--   3          this size
--   * *D       any dimensions; the same name, or *, for the same dimensions everywhere
--   N?         one dimension, or none
--   *D:n       n dimensions, where n is an expression as below
-- and in results, beside these:
--   n          the value of an argument, a number, or (*size) a list
--   (a + b)    an expression (expr.lua) of a number or a list
-- Behind " : " stands the dtype. Of an argument: a class (float, int, bool; inexact: float or complex), a dtype, or the name of the argument that has
-- the same. Of a result: a dtype, the name of an argument that has the same, or an expression of a dtype; the first
-- tensor's where nothing stands.
--
-- The pattern of a Tensor[] is that of each of its tensors; what the first list binds stands for the tensors at the same
-- place in the others (params = "* : float", grads = "* : params"), which have as many, or none.
--
-- `let` = { G = "groups", ["*O"] = "window_out(…)" } names expressions for patterns, conditions and `out`. Sizes are
-- numbers in expressions, `*D` and `N?` lists (D, N). `check` = { { condition, message } } comes last.
local M = {}

local classes = { float = true, int = true, bool = true, inexact = true }
M.dtypes = {} -- names of dtypes
for name in ("float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool uint16 uint32 uint64"):gmatch("%w+") do
  M.dtypes[name] = true
end

local name_pattern = "^([%a_][%w_]*)"

-- The words of a pattern, and the text of its dtype, or nil.
local function words_of(text)
  local list, at = {}, 1
  local function take(pattern)
    local from, to, word = text:find(pattern, at)
    if from then
      at = to + 1
      return word or text:sub(from, to)
    end
  end
  while true do
    take "^%s+"
    if at > #text then return list end
    local word = {}
    local begin = at
    if take "^:" then
      local dtype = text:sub(at):match("^%s*(.-)%s*$")
      if dtype == "" then error("a dtype is missing behind ':'", 0) end
      return list, dtype
    elseif take "^%*" then
      word.star = take(name_pattern) or "*"
      if take "^:" then
        word.length = take "^%b()" or take "^[%w_]+"
        if not word.length then error(("a number is missing behind '%s'"):format(text:sub(begin, at - 1)), 0) end
      end
    elseif text:sub(at, at) == "(" then
      word.expression = take "^%b()"
      if not word.expression then error(("'%s' has no closing parenthesis"):format(text:sub(at)), 0) end
      word.expression = word.expression:sub(2, -2)
    elseif take "^(%d+)" then
      word.number = tonumber(text:sub(begin, at - 1))
    else
      local name = take(name_pattern)
      if name and take "^%?" then word.star, word.one = name, true else word.name = name end
    end
    word.text = text:sub(begin, at - 1)
    if word.text == "" or not text:find("^[%s:]", at) and at <= #text then
      error(("cannot read '%s'; expected a name, a number, '*' or '(expression)'"):format(text:match("^%S+", begin)), 0)
    end
    list[#list + 1] = word
  end
end

local function pattern_of(text)
  if type(text) ~= "string" then error("expected a pattern, as \"N C *\"", 0) end
  local words, dtype = words_of(text)
  local texts = {}
  for i, word in ipairs(words) do texts[i] = word.text end
  return { text = table.concat(texts, " "), words = words, dtype = dtype }
end

-- The names in an expression, as a set.
local function names_in(text)
  local set = {}
  for name in (" " .. text:gsub('"[^"]*"', "")):gmatch("[^%w_.]([%a_][%w_]*)") do set[name] = true end
  return set
end

local function sorted(t)
  local list = {}
  for key in pairs(t) do list[#list + 1] = key end
  table.sort(list, function(a, b) return tostring(a) < tostring(b) end)
  return list
end

-- The expressions of `let` in an order in which each needs only those before it: { name, star, text }.
local function read_lets(op)
  local by_name, list, state = {}, {}, {}
  for _, key in ipairs(sorted(op.let or {})) do
    local star, name = tostring(key):match("^(%*?)([%a_][%w_]*)$")
    if not name then error(("let: cannot read the name '%s'"):format(tostring(key)), 0) end
    if op.index[name] then error(("let: '%s' is an argument already"):format(name), 0) end
    by_name[name] = { name = name, star = star ~= "", text = op.let[key] }
  end
  local function visit(name)
    local let = by_name[name]
    if not let or state[name] == 2 then return end
    if state[name] == 1 then error(("let: '%s' is defined by itself"):format(name), 0) end
    state[name] = 1
    for _, other in ipairs(sorted(names_in(let.text))) do visit(other) end
    state[name] = 2
    list[#list + 1] = let
  end
  for _, name in ipairs(sorted(by_name)) do visit(name) end
  return list, by_name
end

local in_pattern = { TENSOR = true, OPERAND = true, INTS = true, TENSORS = true }

-- Whether at most one part of a pattern has an unknown length, given the names that are known.
local function is_open(input, names)
  local unknown = 0
  for _, word in ipairs(input.words) do
    if word.star and not word.length and not names[word.star] then unknown = unknown + 1 end
  end
  return unknown > 1
end

-- One argument's pattern, bound from the left: notes in `names` what is new, in the word whether it is (`binds`).
local function bind(op, input, names)
  local a = input.arg
  local function fail(...) error(("dims.%s: %s"):format(a.name, (...):format(select(2, ...))), 0) end
  local optional = a.optional or a.type == "OPERAND" or false
  for _, word in ipairs(input.words) do
    local name = word.name or word.star
    local known = name and names[name]
    if word.expression then
      fail("'%s': an expression cannot be matched; name it in let", word.text)
    elseif name and op.index[name] then
      fail("'%s' is an argument; a size has a name of its own", name)
    elseif known then
      if (known.kind == "list") ~= (word.star ~= nil) then
        fail("'%s' is %s elsewhere", name, known.kind == "list" and "any dimensions" or "one size")
      end
      if word.length then fail("'%s': its length is known", word.text) end
      -- Of an argument that may be missing: only the call tells whether the size is known.
      word.maybe = known.optional or nil
      if word.maybe and word.star then fail("'%s' is known only if '%s' is given", word.text, known.from) end
      if word.maybe and not optional then known.optional, known.from = false, a.name end
    elseif name then
      word.binds = true
      names[name] = { kind = word.star and "list" or "number", from = a.name, optional = optional }
    end
  end
  if not input.dtype then return end
  if a.type == "INTS" then fail("a list has no dtype") end
  if not classes[input.dtype] and not M.dtypes[input.dtype] then
    local other = op.index[input.dtype]
    local alike = other and (other.type == "TENSOR" or (other.type == "TENSORS" and a.type == "TENSORS"))
    if not alike or other.optional or other == a then
      fail("'%s' is no dtype, no class (float, int, bool, inexact), and no other tensor that is always given", input.dtype)
    end
  end
end

-- Binds inputs in the order of the arguments, but one with several parts of unknown length ("*L *D") behind those that
-- tell them; returns them in the order in which they are to be matched.
local function bind_all(op, inputs, names)
  local order = {}
  while #inputs > 0 do
    local at
    for i, input in ipairs(inputs) do at = at or (not is_open(input, names) and i) end
    if not at then
      error(("dims.%s: \"%s\" has more than one part of unknown length"):format(inputs[1].arg.name, inputs[1].text), 0)
    end
    local input = table.remove(inputs, at)
    bind(op, input, names)
    order[#order + 1] = input
  end
  return order
end

-- The patterns of lists of tensors: only the first binds names, which hold for one place of all lists.
local function bind_lists(op, lists, names)
  for i, input in ipairs(lists) do
    local outer = {}
    for name in pairs(names) do outer[name] = true end
    if is_open(input, names) then
      error(("dims.%s: \"%s\" has more than one part of unknown length"):format(input.arg.name, input.text), 0)
    end
    bind(op, input, names)
    for name, known in pairs(names) do
      if not outer[name] and i > 1 then
        error(("dims.%s: '%s' is not known from %s"):format(input.arg.name, name, lists[1].arg.name), 0)
      end
      known.element = known.element or (not outer[name] and input.arg.name) or nil
    end
  end
end

local function uses_let(input, by_name)
  for _, word in ipairs(input.words) do
    if by_name[word.name or word.star or ""] then return true end
    for name in pairs(word.length and names_in(word.length) or {}) do if by_name[name] then return true end end
  end
  return false
end

-- Whether a condition reads neither tensors nor sizes: it is asked first, since sizes may count on it.
local function is_of_numbers(op, rule, check)
  for name in pairs(names_in(type(check) == "string" and check or check[1])) do
    local a = op.index[name]
    if rule.names[name] or (a and (a.type == "TENSOR" or a.type == "TENSORS" or a.type == "OPERAND")) then return false end
  end
  return true
end

--- The rule of an op, in the order in which it is to be asked:
--
--   first     conditions of numbers alone
--   inputs    arguments that are matched: { arg, text, words, dtype }
--   lets      expressions: { name, star, text }
--   later     arguments whose patterns have names of these
--   lists     lists of tensors, matched place by place
--   checks    the other conditions
--   outputs   results: { text, words, dtype }
--
-- and names: name -> { kind = "number" | "list", from = argument or "let" }. An error says what is wrong, and where.
function M.read(op)
  local rule = { inputs = {}, later = {}, lists = {}, outputs = {}, names = {}, first = {}, checks = {} }
  local lets, by_name = read_lets(op)
  rule.lets = lets
  for _, name in ipairs(sorted(op.dims or {})) do
    if not op.index[name] then error(("dims names '%s', which is no argument"):format(tostring(name)), 0) end
    if not in_pattern[op.index[name].type] then
      error(("dims.%s: only tensors, lists of them and lists of numbers have patterns"):format(name), 0)
    end
  end
  for _, a in ipairs(op.args) do
    local text = (op.dims or {})[a.name]
    if text ~= nil then
      local ok, input = pcall(pattern_of, text)
      if not ok then error(("dims.%s: %s"):format(a.name, input), 0) end
      input.arg = a
      table.insert(a.type == "TENSORS" and rule.lists or uses_let(input, by_name) and rule.later or rule.inputs, input)
    end
  end
  rule.inputs = bind_all(op, rule.inputs, rule.names)
  for _, let in ipairs(lets) do
    rule.names[let.name] = { kind = let.star and "list" or "number", from = "let" }
  end
  rule.later = bind_all(op, rule.later, rule.names)
  bind_lists(op, rule.lists, rule.names)
  for _, check in ipairs(op.check or {}) do
    table.insert(is_of_numbers(op, rule, check) and rule.first or rule.checks, check)
  end
  if op.out ~= nil then
    local texts = type(op.out) == "table" and op.out or { op.out }
    if #texts ~= op.nresults then
      error(("out has %d pattern%s, the schema %d result%s"):format(#texts, #texts == 1 and "" or "s", op.nresults,
        op.nresults == 1 and "" or "s"), 0)
    end
    for i, text in ipairs(texts) do
      local ok, output = pcall(pattern_of, text)
      if not ok then error("out: " .. output, 0) end
      for _, word in ipairs(output.words) do
        local name = word.name or word.star
        local known = name and (rule.names[name] or op.index[name])
        if word.length then error(("out: '%s': a length is known here"):format(word.text), 0) end
        if name and not known then error(("out: the size '%s' is known from no argument"):format(word.text), 0) end
        if name and rule.names[name] and rule.names[name].element then
          error(("out: '%s' is a size of each tensor of '%s'"):format(word.text, rule.names[name].element), 0)
        end
        if name and rule.names[name] and rule.names[name].optional then
          error(("out: '%s' is known only if '%s' is given"):format(word.text, rule.names[name].from), 0)
        end
        if rule.names[name] and (rule.names[name].kind == "list") ~= (word.star ~= nil) then
          error(("out: '%s' is %s in dims"):format(word.text,
            rule.names[name].kind == "list" and "any dimensions" or "one size"), 0)
        end
      end
      rule.outputs[i] = output
    end
  end
  return rule
end

--- Whether an input's dtype is a class.
function M.is_class(name) return classes[name] == true end

return M
