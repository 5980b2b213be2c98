--- Texts that an answer may be: a grammar over bytes, walked as tokens come (constraint.lua masks the logits by it).
--
--     local g = grammar.new()
--     local start = g:start(g:seq { g:text "[", g:rep(g:bytes "0-9", 1, 3), g:text "]" })
--     local state = g:walk(start, "[12")         -- nil: no text of the grammar begins so
--     print(state.ends, next(g:follow(state)))   -- whether it may end here; the bytes that may come
--
-- A node is made once for each content (so that equal alternatives are one). A state is a set of stacks of nodes that
-- are still to come, and is kept with what each byte makes of it: a text's machine is made as far as it is walked.
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"

local Grammar = class "llm.Grammar"

local NODES, STACKS, STATES = 2 ^ 16, 2 ^ 11, 2 ^ 13 -- at most: of a grammar; of a state; that are kept
local DEEP = 1000 -- nodes in one another before a byte: a rule that begins with itself has no end

function Grammar:__init()
  self.nodes, self.count = {}, 0
  self:forget()
end

-- Forgets the states, not the nodes.
function Grammar:forget()
  self.cells, self.states, self.kept = {}, {}, 0
end

local function node(self, key, t)
  local known = self.nodes[key]
  if known then return known end
  if self.count >= NODES then check.fail("[llm.grammar] more than %d parts: simplify the schema", NODES) end
  self.count = self.count + 1
  t.id, self.nodes[key] = self.count, t
  return t
end

--- One byte of a class as Lua's patterns write it, without the brackets: "0-9a-f", "^\"".
function Grammar:bytes(class_of)
  local set = {}
  local pattern = "^[" .. class_of .. "]$"
  for b = 0, 255 do set[b] = string.char(b):find(pattern) ~= nil or nil end
  return node(self, "bytes " .. class_of, { kind = "bytes", set = set })
end

local function key_of(kind, list)
  local ids = {}
  for i, n in ipairs(list) do ids[i] = n.id end
  return kind .. " " .. table.concat(ids, " ")
end

--- One after the other; none: the empty text.
function Grammar:seq(list)
  return #list == 1 and list[1] or node(self, key_of("seq", list), { kind = "seq", list = list })
end

--- Any one of them.
function Grammar:alt(list)
  return #list == 1 and list[1] or node(self, key_of("alt", list), { kind = "alt", list = list })
end

function Grammar:text(s) return node(self, "text " .. s, { kind = "text", text = s }) end

--- At least `least` times, at most `most` (left out: any number of times).
function Grammar:rep(n, least, most)
  return node(self, ("rep %d %d %s"):format(n.id, least, most or ""),
    { kind = "rep", of = n, least = least, most = most })
end

--- What make() gives when it is first needed: a name for each, for grammars that contain themselves.
function Grammar:rule(name, make) return node(self, "rule " .. name, { kind = "rule", make = make }) end

-- ---- states ------------------------------------------------------------------------------------------

-- A stack: a node, the place in its text, and the stack below it. Equal ones are one table.
local function cell(self, n, at, below)
  local key = ("%d %d %d"):format(n.id, at, below and below.id or 0)
  local c = self.cells[key]
  if not c then
    self.cells.n = (self.cells.n or 0) + 1
    c = { node = n, at = at, below = below, id = self.cells.n }
    self.cells[key] = c
  end
  return c
end

local expand

-- Puts a node on a stack, and takes apart what is no byte.
local function push(self, out, n, below)
  if n.kind == "bytes" or n.kind == "text" and n.text ~= "" then
    local c = cell(self, n, 1, below)
    if not out[c.id] then
      out[c.id], out.n = c, out.n + 1
      if out.n > STACKS then check.fail "[llm.grammar] too many ways to read the text: simplify the schema" end
    end
    return
  end
  expand(self, out, n, below)
end

-- Goes on below a stack that is done.
local function pop(self, out, below)
  if not below then
    out.ends = true
    return
  end
  local n, at = below.node, below.at
  if n.kind == "seq" then
    return expand(self, out, n, below.below, at + 1)
  end
  expand(self, out, n, below.below, at) -- rep, one more time
end

-- at: the part of a sequence, or how often a repetition was there.
function expand(self, out, n, below, at)
  local kind = n.kind
  -- What is being expanded is not expanded again on the same stack: alternatives that lead back to themselves.
  local mark = ("%s %d %d %d"):format(kind, n.id, at or 0, below and below.id or 0)
  if out.seen[mark] then return end
  out.seen[mark], out.depth = true, out.depth + 1
  if out.depth > DEEP then check.fail "[llm.grammar] a rule begins with itself" end
  if kind == "seq" then
    at = at or 1
    local part = n.list[at]
    if part then
      push(self, out, part, at < #n.list and cell(self, n, at, below) or below)
    else
      pop(self, out, below)
    end
  elseif kind == "alt" then
    for _, part in ipairs(n.list) do push(self, out, part, below) end
  elseif kind == "rep" then
    at = at or 0
    if at >= n.least then pop(self, out, below) end
    if not n.most or at < n.most then
      push(self, out, n.of, cell(self, n, n.most and at + 1 or math.min(at + 1, n.least), below))
    end
  elseif kind == "rule" then
    n.is = n.is or n.make()
    push(self, out, n.is, below)
  else -- an empty text
    pop(self, out, below)
  end
  out.depth = out.depth - 1
end

local function state_of(self, out)
  local ids = {}
  for id, c in each(out) do
    if type(id) == "number" and type(c) == "table" then ids[#ids + 1] = id end
  end
  table.sort(ids)
  local key = table.concat(ids, " ") .. (out.ends and " ends" or "")
  local s = self.states[key]
  if not s then
    s = { ends = out.ends or false, stacks = {}, next = {} }
    for i, id in ipairs(ids) do s.stacks[i] = out[id] end
    self.states[key], self.kept = s, self.kept + 1
  end
  return s
end

local function empty() return { n = 0, depth = 0, seen = {} } end

--- The state before a text of node n.
function Grammar:start(n)
  local out = empty()
  push(self, out, n, nil)
  return state_of(self, out)
end

-- The state behind one more byte; false: there is none.
local function step(self, state, byte)
  local out = empty()
  for _, c in ipairs(state.stacks) do
    local n = c.node
    if n.kind == "bytes" then
      if n.set[byte] then pop(self, out, c.below) end
    elseif n.text:byte(c.at) == byte then
      if c.at < #n.text then
        local further = cell(self, n, c.at + 1, c.below)
        if not out[further.id] then out[further.id], out.n = further, out.n + 1 end
      else
        pop(self, out, c.below)
      end
    end
  end
  return (out.n > 0 or out.ends) and state_of(self, out) or false
end

--- The state behind one more byte, or false: no text of the grammar goes on so.
function Grammar:advance(state, byte)
  local further = state.next[byte]
  if further == nil then
    further = step(self, state, byte)
    state.next[byte] = further
  end
  return further
end

--- The state behind a text, or nil.
function Grammar:walk(state, text)
  for i = 1, #text do
    state = self:advance(state, text:byte(i))
    if not state then return nil end
  end
  return state
end

--- The bytes that may come, as a set.
function Grammar.follow(_, state)
  local set = {}
  for _, c in ipairs(state.stacks) do
    if c.node.kind == "text" then
      set[c.node.text:byte(c.at)] = true
    else
      for b in each(c.node.set) do set[b] = true end
    end
  end
  return set
end

--- Whether so many states are kept that they are to be forgotten; states that are held stay whole.
function Grammar:is_full() return self.kept > STATES end

return { new = function() return Grammar() end }
