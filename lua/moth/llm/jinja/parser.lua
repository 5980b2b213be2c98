--- Makes closures of a chat template's tokens (jinja/init.lua): expressions f(scope) -> value, statements f(scope, out)
-- -> nil, "break" or "continue". A scope is a table of variables whose metatable leads to the one around it.
local F = require "moth.llm.jinja.filters"
local V = require "moth.llm.jinja.values"

local fail, spend, is, truth, run = V.fail, V.spend, V.is, V.truth, V.run

local DEPTH = 100 -- of brackets, blocks, and macros that call themselves

local function child(scope) return setmetatable({}, { __index = scope }) end

local function inner_text(body, scope)
  local out = {}
  local signal = body(scope, out)
  if signal then fail("'%s' outside a loop", signal) end
  return table.concat(out)
end

-- The values of a call by place, and by name (V.apply); list and named are pairs of a star or a name and a closure.
local function arguments_of(list, named, scope)
  local args, kwargs = {}, {}
  local function name(key, v)
    if kwargs[key] ~= nil then fail("two values for %s", V.text(key)) end
    kwargs[#kwargs + 1], kwargs[key] = key, v
  end
  for _, one in ipairs(list) do
    local v = one[2](scope)
    if one[1] then
      for _, item in ipairs(V.items(v, "*")) do args[#args + 1] = item end
    else
      args[#args + 1] = v
    end
  end
  if #args > DEPTH then fail("%d arguments are too many", #args) end
  for _, one in ipairs(named) do
    local v = one[2](scope)
    if one[1] then
      name(one[1], v)
    else
      for _, pair in ipairs(F.pairs(v)) do
        if type(pair[1]) ~= "string" then fail "**: a name is no text" end
        name(pair[1], pair[2])
      end
    end
  end
  return args, kwargs
end

local constants = { ["true"] = true, ["True"] = true, ["false"] = false, ["False"] = false, none = V.NONE,
  None = V.NONE }

local function parse(kinds, values, lines)
  local i, depth = 1, 0
  local expression, statements

  local function here(kind, value) return kinds[i] == kind and (value == nil or values[i] == value) end
  local function stop(message, ...)
    run.line = lines[i]
    fail(message, ...)
  end
  local function unexpected(wanted)
    stop("expected %s, got '%s'", wanted, tostring(values[i]):sub(1, 20):gsub("%s+", " ") .. "")
  end
  local function take(kind, value)
    if not here(kind, value) then return nil end
    i = i + 1
    return values[i - 1]
  end
  local function need(kind, value)
    local v = take(kind, value)
    if v == nil then unexpected(value or kind) end
    return v
  end
  local function deeper(f, ...)
    depth = depth + 1
    if depth > DEPTH then stop "it nests too deep" end
    local result = f(...)
    depth = depth - 1
    return result
  end

  -- f(x) for one more token of the list that `close` ends.
  local function each_until(close, f)
    while not take(close) do
      f()
      if not here(close) then need "," end
    end
  end

  local function call_arguments()
    local list, named = {}, {}
    each_until(")", function()
      if kinds[i] == "name" and kinds[i + 1] == "=" then
        i = i + 2
        named[#named + 1] = { values[i - 2], expression() }
      elseif take "**" then
        named[#named + 1] = { false, expression() }
      else
        list[#list + 1] = { take "*" or false, expression() }
      end
    end)
    return list, named
  end

  local function sequence(parts, tuple)
    return function(scope)
      local out = { tuple = tuple }
      for k = 1, #parts do out[k] = parts[k](scope) end
      return V.list(out)
    end
  end

  local function primary()
    if kinds[i] == "name" then
      local name = need "name"
      if constants[name] ~= nil then
        local value = constants[name]
        return function() return value end
      end
      return function(scope)
        spend(1)
        local v = scope[name]
        if v == nil then return V.undefined(name) end
        return v
      end
    elseif kinds[i] == "string" or kinds[i] == "number" then
      local value = values[i]
      i = i + 1
      while type(value) == "string" and here "string" do value = value .. need "string" end
      return function() return value end
    elseif take "(" then
      if take ")" then return sequence({}, true) end
      local first = expression()
      if take ")" then return first end
      local parts = { first }
      need ","
      each_until(")", function() parts[#parts + 1] = expression() end)
      return sequence(parts, true)
    elseif take "[" then
      local parts = {}
      each_until("]", function() parts[#parts + 1] = expression() end)
      return sequence(parts)
    elseif take "{" then
      local keys, parts = {}, {}
      each_until("}", function()
        keys[#keys + 1] = expression()
        need ":"
        parts[#parts + 1] = expression()
      end)
      return function(scope)
        local d = V.dict()
        for k = 1, #keys do V.put(d, keys[k](scope), parts[k](scope)) end
        return d
      end
    end
    unexpected "a value"
  end

  -- Behind "[": one index, or a slice.
  local function subscript(object)
    local parts, k, is_slice = {}, 1, false
    while not take "]" do
      if take ":" then
        k, is_slice = k + 1, true
      else
        if parts[k] or k > 3 then unexpected "]" end
        parts[k] = expression()
      end
    end
    if not is_slice then
      local key = parts[1] or unexpected "an index"
      return function(scope) return V.item(object(scope), key(scope)) end
    end
    local from, to, step = parts[1], parts[2], parts[3]
    return function(scope)
      return V.slice(object(scope), from and from(scope), to and to(scope), step and step(scope))
    end
  end

  local function postfix(node)
    while true do
      local object = node
      if take "." then
        local name = take "number" or need "name"
        if type(name) == "number" then
          node = function(scope) return V.item(object(scope), name) end
        else
          node = function(scope) return V.attribute(object(scope), name) end
        end
      elseif take "[" then
        node = deeper(subscript, object)
      elseif take "(" then
        local list, named = call_arguments()
        node = function(scope) return V.call(object(scope), arguments_of(list, named, scope)) end
      else
        return node
      end
    end
  end

  local function filter(node)
    local name, list, named = need "name", {}, {}
    if not F.filters[name] then
      i = i - 1
      stop("there is no filter '%s'", name)
    end
    if take "(" then list, named = call_arguments() end
    return function(scope) return F.filter(node(scope), name, arguments_of(list, named, scope)) end
  end

  local no_argument = { ["else"] = true, ["or"] = true, ["and"] = true, ["if"] = true, ["is"] = true, ["in"] = true,
    ["not"] = true, ["recursive"] = true }
  local starts_value = { name = true, string = true, number = true, ["["] = true, ["{"] = true }

  local function test(node)
    local negated = take("name", "not")
    local name, list, named = need "name", {}, {}
    local f = F.tests[name] or stop("there is no test '%s'", name)
    if take "(" then
      list, named = call_arguments()
    elseif starts_value[kinds[i]] and not (kinds[i] == "name" and no_argument[values[i]]) then
      list[1] = { false, postfix(primary()) }
    end
    return function(scope)
      spend(2)
      local result = f(node(scope), (arguments_of(list, named, scope))[1])
      if negated then return not result end
      return result
    end
  end

  local function unary(no_filter)
    local node
    if take "-" then
      local operand = deeper(unary, true)
      node = function(scope) return V.negative(operand(scope)) end
    elseif take "+" then
      node = deeper(unary, true)
    else
      node = primary()
    end
    node = postfix(node)
    while not no_filter do
      if take "|" then
        node = filter(node)
      elseif take("name", "is") then
        node = test(node)
      elseif take "(" then
        i = i - 1
        node = postfix(node)
      else
        break
      end
    end
    return node
  end

  -- Operators of one rank, from the left.
  local function level(names, below)
    return function()
      local left = below()
      while names[kinds[i]] do
        local f, a = V.operators[kinds[i]], left
        i = i + 1
        local b = below()
        left = function(scope)
          spend(1)
          return f(a(scope), b(scope))
        end
      end
      return left
    end
  end

  local power = level({ ["**"] = true }, unary)
  local product = level({ ["*"] = true, ["/"] = true, ["//"] = true, ["%"] = true }, power)
  local function concat()
    local first = product()
    if not here "~" then return first end
    local parts = { first }
    while take "~" do parts[#parts + 1] = product() end
    return function(scope)
      local out, n = {}, 0
      for k = 1, #parts do
        out[k] = V.text(parts[k](scope))
        n = n + #out[k]
      end
      spend(1 + n / 16)
      return table.concat(out)
    end
  end
  local sum = level({ ["+"] = true, ["-"] = true }, concat)

  local compared = { ["=="] = true, ["!="] = true, ["<"] = true, [">"] = true, ["<="] = true, [">="] = true }
  local function comparison()
    local first, fs, parts = sum(), {}, {}
    while true do
      local name = compared[kinds[i]] and kinds[i] or here("name", "in") and "in"
      if here("name", "not") and kinds[i + 1] == "name" and values[i + 1] == "in" then
        name, i = "not in", i + 1
      end
      if not name then break end
      i = i + 1
      fs[#fs + 1], parts[#parts + 1] = V.operators[name], sum()
    end
    if #fs == 0 then return first end
    return function(scope)
      spend(1)
      local left = first(scope)
      for k = 1, #fs do
        local right = parts[k](scope)
        if not fs[k](left, right) then return false end
        left = right
      end
      return true
    end
  end

  local function negation()
    if not take("name", "not") then return comparison() end
    local node = deeper(negation)
    return function(scope) return not truth(node(scope)) end
  end

  local function logic(word, below)
    return function()
      local left = below()
      while take("name", word) do
        local a, b = left, below()
        left = function(scope)
          local v = a(scope)
          if truth(v) == (word == "or") then return v end
          return b(scope)
        end
      end
      return left
    end
  end
  local either = logic("or", logic("and", negation))

  local function conditional()
    local node = either()
    while take("name", "if") do
      local yes, condition, no = node, either(), nil
      if take("name", "else") then no = deeper(conditional) end
      node = function(scope)
        if truth(condition(scope)) then return yes(scope) end
        if no then return no(scope) end
        return V.undefined "the else of an if"
      end
    end
    return node
  end

  function expression() return deeper(conditional) end

  -- Values with commas between are a tuple.
  local function tuple()
    local first = expression()
    if not here "," then return first end
    local parts = { first }
    while take "," and not here "%}" and not here "}}" do parts[#parts + 1] = expression() end
    return sequence(parts, true)
  end

  -- ---- statements ----

  local function name_of_variable()
    local name = need "name"
    if constants[name] ~= nil or name == "not" or name == "in" or name == "if" then
      stop("'%s' is no name for a variable", name)
    end
    return name
  end

  -- What stands left of "=" or "in": f(scope, value).
  local function target()
    local names = {}
    local close = take "(" and ")"
    repeat
      if close and here(close) then break end
      names[#names + 1] = name_of_variable()
    until not take ","
    if close then need(close) end
    if #names == 1 then
      local name = names[1]
      return function(scope, v) scope[name] = v end
    end
    return function(scope, v)
      local parts = V.items(v, "a list of variables")
      if #parts ~= #names then fail("%d values for %d variables", #parts, #names) end
      for k, name in ipairs(names) do scope[name] = parts[k] end
    end
  end

  local function loop_get(loop, name)
    local n, at, items = #loop.items, loop.at, loop.items
    if name == "index" then return at end
    if name == "index0" then return at - 1 end
    if name == "first" then return at == 1 end
    if name == "last" then return at == n end
    if name == "length" then return n end
    if name == "revindex" then return n - at + 1 end
    if name == "revindex0" then return n - at end
    if name == "previtem" then return items[at - 1] end
    if name == "nextitem" then return items[at + 1] end
    if name == "depth" or name == "depth0" then return name == "depth" and 1 or 0 end
    if name == "cycle" then
      return V.callable("cycle", nil, function(args) return args[(at - 1) % math.max(#args, 1) + 1] or V.NONE end)
    end
  end

  local blocks = {}

  function blocks.if_(line)
    local tests, bodies = {}, {}
    local word
    repeat
      tests[#tests + 1] = tuple()
      need "%}"
      bodies[#bodies + 1], word = statements("elif", "else", "endif")
    until word ~= "elif"
    local otherwise
    if word == "else" then
      need "%}"
      otherwise = statements "endif"
    end
    return function(scope, out)
      for k = 1, #tests do
        run.line = line
        if truth(tests[k](scope)) then return bodies[k](scope, out) end
      end
      if otherwise then return otherwise(scope, out) end
    end
  end

  blocks["for"] = function(line)
    local assign = target()
    need("name", "in")
    -- The condition of `for x in y if z` is no part of y.
    local list = deeper(either)
    if here "," then
      local parts = { list }
      while take "," do parts[#parts + 1] = either() end
      list = sequence(parts, true)
    end
    local condition
    if take("name", "if") then condition = expression() end
    if here("name", "recursive") then stop "recursive loops are not supported" end
    need "%}"
    local body, word = statements("else", "endfor")
    local otherwise
    if word == "else" then
      need "%}"
      otherwise = statements "endfor"
    end
    return function(scope, out)
      run.line = line
      local items, inner = V.items(list(scope)), { __index = scope }
      if condition then
        local all = items
        items = {}
        for k = 1, #all do
          local s = setmetatable({}, inner)
          assign(s, all[k])
          if truth(condition(s)) then items[#items + 1] = all[k] end
        end
      end
      local whole = false -- as in Python's Jinja, else is for loops of which no turn came to its end
      local loop = setmetatable({ items = items, get = loop_get }, V.Loop)
      for k = 1, #items do
        spend(5)
        local s = setmetatable({}, inner)
        loop.at, s.loop = k, loop
        assign(s, items[k])
        local signal = body(s, out)
        if signal == "break" then break end
        whole = whole or not signal
      end
      if otherwise and not whole then return otherwise(scope, out) end
    end
  end

  function blocks.set(line)
    if kinds[i + 1] == "." then
      local name = need "name"
      i = i + 1
      local field = need "name"
      need "="
      local value = tuple()
      return function(scope)
        run.line = line
        local space = scope[name]
        if not is(space, V.Namespace) then fail("'%s' is no namespace: its fields cannot be set", name) end
        spend(2)
        space.map[field] = value(scope)
      end
    end
    local assign = target()
    if take "=" then
      local value = tuple()
      return function(scope)
        run.line = line
        spend(1)
        assign(scope, value(scope))
      end
    end
    local current
    local value = function() return current end
    while take "|" do value = filter(value) end
    need "%}"
    local body = statements "endset"
    return function(scope)
      current = inner_text(body, child(scope))
      assign(scope, value(scope))
    end
  end

  -- A macro's parameters behind "(", and what stands for those that are not given.
  local function parameters()
    local names, defaults = {}, {}
    each_until(")", function()
      names[#names + 1] = name_of_variable()
      if take "=" then defaults[#names] = expression() end
    end)
    return names, defaults
  end

  local function macro(name, names, defaults, body, scope)
    local running = 0
    return V.callable(name, nil, function(args, kwargs)
      local s, line, given = child(scope), run.line, V.bind(name, names, args, kwargs)
      running = running + 1
      if running > DEPTH then fail("%s calls itself too often", name) end
      for k, parameter in ipairs(names) do
        local v = given[k]
        if v == nil and defaults[k] then v = defaults[k](s) end
        if v == nil then v = V.undefined(parameter) end
        s[parameter] = v
      end
      s.caller = kwargs.caller
      local result = inner_text(body, s)
      running, run.line = running - 1, line
      return result
    end)
  end

  function blocks.macro()
    local name = name_of_variable()
    need "("
    local names, defaults = parameters()
    need "%}"
    local body = statements "endmacro"
    return function(scope) scope[name] = macro(name, names, defaults, body, scope) end
  end

  function blocks.call(line)
    local names, defaults = {}, {}
    if take "(" then names, defaults = parameters() end
    local from = i
    local object = primary()
    while kinds[i] == "." do
      i = i + 1
      local inside, field = object, need "name"
      object = function(scope) return V.attribute(inside(scope), field) end
    end
    if not take "(" then
      i = from
      stop "call: expected a macro and its arguments"
    end
    local list, named = call_arguments()
    need "%}"
    local body = statements "endcall"
    return function(scope, out)
      run.line = line
      local args, kwargs = arguments_of(list, named, scope)
      kwargs.caller = macro("caller", names, defaults, body, scope)
      out[#out + 1] = V.text(V.call(object(scope), args, kwargs))
    end
  end

  function blocks.filter()
    local current
    local value = filter(function() return current end)
    while take "|" do value = filter(value) end
    need "%}"
    local body = statements "endfilter"
    return function(scope, out)
      current = inner_text(body, child(scope))
      out[#out + 1] = V.text(value(scope))
    end
  end

  function blocks.with()
    local assigns, parts = {}, {}
    while not here "%}" do
      assigns[#assigns + 1] = target()
      need "="
      parts[#parts + 1] = expression()
      if not here "%}" then need "," end
    end
    need "%}"
    local body = statements "endwith"
    return function(scope, out)
      local s = child(scope)
      for k = 1, #parts do assigns[k](s, parts[k](scope)) end
      return body(s, out)
    end
  end

  function blocks.generation() -- what the assistant says: marked for training, written as it is
    need "%}"
    local body = statements "endgeneration"
    return function(scope, out) return body(child(scope), out) end
  end

  blocks["break"] = function() return function() return "break" end end
  blocks["continue"] = function() return function() return "continue" end end

  local function print_of(line)
    local value = tuple()
    need "}}"
    return function(scope, out)
      run.line = line
      local s = V.text(value(scope))
      spend(1 + #s / 16)
      out[#out + 1] = s
    end
  end

  local function data_of(s)
    return function(_, out)
      spend(1 + #s / 16)
      out[#out + 1] = s
    end
  end

  -- Statements up to one of the words (nil: the end); the word. The tokens stand behind it.
  local function until_word(...)
    local words, list, found = {}, {}, nil
    for k = 1, select("#", ...) do words[select(k, ...)] = true end
    while not found do
      local line = lines[i]
      if here "end" then
        if next(words) then stop("'%s' is missing", (select(-1, ...))) end
        break
      elseif kinds[i] == "data" then
        list[#list + 1] = data_of(need "data")
      elseif take "{{" then
        list[#list + 1] = print_of(line)
      else
        need "{%"
        local word = need "name"
        if words[word] then
          found = word
        else
          local make = blocks[word == "if" and "if_" or word]
          if not make or word == "if_" then
            i = i - 1
            stop("{%% %s %%} is not known or not supported", word)
          end
          list[#list + 1] = make(line)
          need "%}"
        end
      end
    end
    local n = #list
    return function(scope, out)
      for k = 1, n do
        local signal = list[k](scope, out)
        if signal then return signal end
      end
    end, found
  end

  function statements(...)
    depth = depth + 1
    if depth > DEPTH then stop "it nests too deep" end
    local body, word = until_word(...)
    depth = depth - 1
    return body, word
  end

  return (statements())
end

return { parse = parse, child = child, inner_text = inner_text }
