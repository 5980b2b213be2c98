--- Writes the reference as HTML: a page for each op that users call, each class and each module, the guides, and a page
-- with a search of them all. `make site` runs it.
--
--     require("moth.reference.pages").write("build/site", ".")
--
-- The folder can be read from the disk or served; no page needs another site.
local collect = require "moth.reference.collect"
local entry = require "moth.reference.entry"
local html = require "moth.reference.html"
local system = require "moth.utils.system"
local M = {}

local families = { -- in the order of the index; others follow under their own names
  { "create", "Creation" }, { "random", "Random numbers" }, { "pointwise", "Element by element" },
  { "activation", "Activations" }, { "special", "Special functions" }, { "reduce", "Reductions" },
  { "statistics", "Statistics" }, { "view", "Shapes and views" }, { "index", "Indexing" }, { "places", "Places" },
  { "sort", "Sorting" }, { "linalg", "Products of matrices" }, { "decompositions", "Linear algebra" },
  { "nn", "Networks" }, { "norm", "Normalization" }, { "conv", "Convolutions and pools" },
  { "conv3d", "Convolutions and pools in three dimensions" }, { "attention", "Attention" },
}

-- The address of an op's page, from the folder of the index.
local function op_page(op)
  if op.internal then return "parts.html#" .. op.name end
  return "ops/" .. op.name:gsub("::", "-") .. ".html"
end

-- link(name) for pages that lie `up` below the index.
local function linker(up)
  return function(name)
    local op = require("moth.dispatch.ops").get(name)
    return op and up .. op_page(op) or nil
  end
end

local function list_of(title, links)
  return ('<h2>%s</h2><div class="names">%s</div>'):format(html.escape(title), table.concat(links, "\n"))
end

local function anchor(url, name) return ('<a href="%s">%s</a>'):format(url, html.escape(name)) end

local function nothing() end

-- The ops: pages of the public ones, one page of the others. Returns the lists of the index.
local function write_ops(things, write, entries)
  local of, order, parts = {}, {}, {}
  for _, f in ipairs(families) do
    of[f[1]], order[#order + 1] = {}, f
  end
  for _, thing in ipairs(things) do
    if thing[2] == nil then
      local found = entry.of(thing[1])
      local op = found.op
      entries[#entries + 1] = { op.name, op_page(op), entry.first_sentence(op.doc) }
      if op.internal then
        parts[#parts + 1] = html.entry(found, "h2", linker "", nothing)
      else
        write(op_page(op), html.page(op.name, "../", html.entry(found, "h1", linker "../", nothing)))
        if not of[op.family] then
          of[op.family], order[#order + 1] = {}, { op.family, op.family:sub(1, 1):upper() .. op.family:sub(2) }
        end
        table.insert(of[op.family], anchor(op_page(op), op.name))
      end
    end
  end
  write("parts.html", html.page("Parts of other ops", "", [[
<h1>Parts of other ops, derivatives and optimizers</h1>
<p>Functions of moth.ops.moth: of interest to those who write backends.</p>
]] .. table.concat(parts, "\n")))
  local lists = {}
  for _, f in ipairs(order) do if #of[f[1]] > 0 then lists[#lists + 1] = list_of(f[2], of[f[1]]) end end
  return lists
end

-- The functions in a class's own table.
local function methods(cls, path)
  local list = {}
  for _, name in ipairs(entry.fields(cls)) do
    local fn = rawget(cls, name)
    local found = type(fn) == "function" and entry.of(path .. "." .. name, fn)
    if found and found.doc then list[#list + 1] = found end
  end
  return list
end

-- Modules and classes have pages of their own, functions a part of their module's.
local function write_lua(things, write, entries)
  local page, functions, links = {}, {}, { module = {}, class = {} }
  for _, thing in ipairs(things) do
    local path, value, module = thing[1], thing[2], thing[3]
    if type(value) == "table" then
      page[path] = "lua/" .. path .. ".html"
    elseif value ~= nil then
      page[path] = ("lua/%s.html#%s"):format(module, path:match("[^.]+$"))
      functions[module] = functions[module] or {}
      table.insert(functions[module], thing)
    end
  end
  local link = linker "../"
  for _, thing in ipairs(things) do
    local path, value = thing[1], thing[2]
    local found = value ~= nil and entry.of(path, value)
    if found then
      entries[#entries + 1] = { path, page[path], entry.first_sentence(found.doc) }
    end
    if found and type(value) == "table" then
      local parts, own = {}, {}
      if found.kind == "class" then
        for _, method in ipairs(methods(value, path)) do
          own[method.path:match("[^.]+$")] = true
          parts[#parts + 1] = html.entry(method, "h2", link, nothing)
        end
      else
        for _, fn in ipairs(functions[path] or {}) do
          parts[#parts + 1] = html.entry(entry.of(fn[1], fn[2]), "h2", link, nothing)
        end
      end
      local function link_field(name)
        if own[name] then return "#" .. name end
        local url = page[path .. "." .. name]
        local op = not url and found.kind == "module" and link(name)
        return url and "../" .. url or op or nil
      end
      write(page[path], html.page(path, "../",
        html.entry(found, "h1", link, link_field) .. "\n" .. table.concat(parts, "\n")))
      table.insert(links[found.kind], anchor(page[path], path))
    end
  end
  return { list_of("Modules", links.module), list_of("Classes", links.class) }
end

--- Writes the reference into a folder that is made anew; with `root`, the folder of the sources, the guides as well.
-- Returns the number of files.
function M.write(folder, root)
  local quoted, count, made = system.quoted(folder), 0, {}
  os.execute(("rm -rf %s && mkdir -p %s"):format(quoted, quoted))
  local function write(name, text)
    name = name:gsub("#.*", "")
    local below = name:match("^(.*)/")
    if below and not made[below] then
      os.execute(("mkdir -p %s/%s"):format(quoted, below))
      made[below] = true
    end
    local f = assert(io.open(folder .. "/" .. name, "wb"))
    f:write(text)
    f:close()
    if not made[name] then made[name], count = true, count + 1 end
  end
  local entries, things, lists = {}, collect(), {}
  html.top = root and { { "start", "guides/start.html" }, { "guides", "guides/index.html" },
    { "examples", "guides/examples.html" }, { "reference", "index.html#reference" } } or {}
  if root then
    local guides, index = require("moth.reference.guides").write(root, write)
    local links = {}
    for i, guide in ipairs(guides) do entries[#entries + 1], links[i] = guide, anchor(guide[2], guide[1]) end
    lists[1] = index or ""
    lists[2] = list_of("All guides", links) .. '\n<h1 id="reference">Reference</h1>'
  end
  for _, list in ipairs(write_ops(things, write, entries)) do lists[#lists + 1] = list end
  for _, list in ipairs(write_lua(things, write, entries)) do lists[#lists + 1] = list end
  local title = "moth " .. require("moth_lua").version_string
  write("index.html", require "moth.reference.search"(title, entries, table.concat(lists, "\n")))
  return count
end

--- Writes the site of a source tree, and checks its links: an error lists those that lead nowhere.
function M.site(folder, root)
  local links = require "moth.reference.links"
  local pages = M.write(folder, root)
  local dead, count = links.check(links.files(folder))
  if #dead > 0 then error(("%d dead links:\n  %s"):format(#dead, table.concat(dead, "\n  ")), 0) end
  return pages, count
end

return M
