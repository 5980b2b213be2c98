-- Reads the scalar formulas of kernels/math*.h, and gives the text of those that a kernel needs: with the compute type
-- in place of `real`, and names that end in the type's suffix, so that one file may have them for several types, and
-- changes only when a formula changes that it uses.
local M = {}

-- Of the preprocessor only what math*.h has: conditions on MOTH_REAL_KIND are decided, others stay as they are.
local function condition(text, kind)
  local c = text:match("^#if (.*MOTH_REAL_KIND.*)$")
  if not c then return nil end
  c = c:gsub("MOTH_REAL_KIND", kind):gsub("||", " or "):gsub("&&", " and ")
  return assert(loadstring("return " .. c))()
end

-- The lines of a header for a kind, those that it includes among them, each with the file that it stands in.
local function lines_of(read, file, kind, out)
  local stack, on = {}, true -- of conditions: { decided, taken, outer }
  for line in read(file):gmatch("([^\n]*)\n") do
    local directive = line:match("^#(%l+)")
    if directive == "if" or directive == "ifdef" or directive == "ifndef" then
      local taken
      if line:find("MOTH_KERNELS_MATH_H", 1, true) then taken = true else taken = condition(line, kind) end
      stack[#stack + 1] = { decided = taken ~= nil, taken = taken, outer = on }
      if taken == nil then
        if on then out[#out + 1] = { line, file } end
      else
        on = on and taken
      end
    elseif directive == "else" and stack[#stack].decided then
      local top = stack[#stack]
      on = top.outer and not top.taken
    elseif directive == "endif" and stack[#stack].decided then
      on = table.remove(stack).outer
    elseif directive == "include" and on then
      local name = line:match('"(.-)"')
      if name ~= "math_libm.h" then lines_of(read, name, kind, out) end
    elseif on then
      if directive == "endif" then table.remove(stack) end
      out[#out + 1] = { line, file }
    elseif directive == "endif" then
      table.remove(stack)
    end
  end
  return out
end

-- name -> { name, text, common, uses = { name, … } }, and the names in their order. A definition is a function, a
-- struct or a macro that begins in the first column; the comment before it belongs to it.
local function definitions(read, kind)
  local list, by_name, comment, body, name, file = {}, {}, {}, nil, nil, nil
  local macros = {} -- those for names of functions: MOTH_REAL_LIBM_
  local function close()
    comment[#comment + 1] = table.concat(body, "\n")
    local d = { name = name, text = table.concat(comment, "\n"), common = file == "math_bits.h" }
    list[#list + 1], by_name[name], comment, body = d, d, {}, nil
  end
  for _, l in ipairs(lines_of(read, "math_random.h", kind, lines_of(read, "math.h", kind, {}))) do
    local line = l[1]
    if body then
      body[#body + 1] = line
      name = name or line:match("([%w_]+)%(")
      if macros[1] == "open" then
        if not line:find("\\$") then macros[1] = nil; close() end
      elseif line == "}" or line == "};" then
        close()
      end
    elseif line:find("^//") then
      comment[#comment + 1] = line
    elseif line:find("^#define MOTH_") then
      local macro, parameter, text = line:match("^#define ([%w_]+)%(([%w_]+)%) (.*)$")
      if macro then
        macros[macro] = function(argument) return (text:gsub("%s*##%s*", ""):gsub(parameter, argument)) end
      end
      comment = {}
    elseif line:find("^MOTH_FN ") or line:find("^struct ") or line:find("^#define ") then
      body, file = { line }, l[2]
      name = line:match("^struct ([%w_]+) {") or line:match("^#define ([%w_]+)") or line:match("([%w_]+)%(")
      if line:find("^#define") then
        if line:find("\\$") then macros[1] = "open" else close() end
      end
    else
      comment = {}
    end
  end
  for _, d in ipairs(list) do
    for macro, expand in pairs(macros) do d.text = d.text:gsub(macro .. "%(([%w_]+)%)", expand) end
    local seen = {}
    d.uses = {}
    for word in d.text:gsub("//[^\n]*", ""):gmatch("[%a_][%w_]*") do
      if by_name[word] and word ~= d.name and not seen[word] then
        seen[word] = true
        d.uses[#d.uses + 1] = word
      end
    end
  end
  return { list = list, by_name = by_name }
end

--- A reader of formulas. `read(name)` gives the text of a file of kernels/.
function M.reader(read)
  local of_kind, self = {}, {}

  function self.of(kind)
    of_kind[kind] = of_kind[kind] or definitions(read, kind)
    return of_kind[kind]
  end

  --- Whether there is a formula of this name for a kind.
  function self.has(name, kind) return self.of(kind).by_name[name] ~= nil end

  --- The name in generated code of a formula for a dtype.
  function self.name(name, dtype)
    local d = self.of(dtype.kind).by_name[name]
    return d and d.common and name or name .. "_" .. dtype.suffix
  end

  --- Those of a kind, under their own names and of `real`, that a text of C names: for a file of one dtype.
  function self.named_in(text, kind)
    local all, wanted, parts = self.of(kind), {}, {}
    local function want(name)
      if wanted[name] then return end
      wanted[name] = true
      for _, used in ipairs(all.by_name[name].uses) do want(used) end
    end
    for word in text:gmatch("[%a_][%w_]*") do
      if all.by_name[word] then want(word) end
    end
    for _, d in ipairs(all.list) do
      if wanted[d.name] then parts[#parts + 1] = d.text end
    end
    return table.concat(parts, "\n")
  end

  --- The text of the named formulas and of all that they use. `done` remembers what the file has already.
  function self.text(names, dtype, done)
    local all, wanted, parts = self.of(dtype.kind), {}, {}
    local function want(name)
      if wanted[name] then return end
      wanted[name] = true
      for _, used in ipairs(assert(all.by_name[name], name).uses) do want(used) end
    end
    for _, name in ipairs(names) do
      if not all.by_name[name] then error(("there is no %s for %s in kernels/math*.h"):format(name, dtype.name), 0) end
      want(name)
    end
    for _, d in ipairs(all.list) do
      local key = d.common and d.text or d.name .. " " .. dtype.suffix -- a struct and a function may share a name
      if wanted[d.name] and not done[key] then
        done[key] = true
        local function rename(word)
          if word == "real" then return dtype.real end
          local other = all.by_name[word]
          return other and not other.common and word .. "_" .. dtype.suffix or nil
        end
        parts[#parts + 1] = (d.text:gsub("[%a_][%w_]*", rename))
      end
    end
    return table.concat(parts, "\n")
  end

  return self
end

return M
