--- The guides, docs/*.md, the README and what else is written in Markdown, as pages. Markdown is read by cmark-gfm.
local html = require "moth.reference.html"
local system = require "moth.utils.system"
local M = {}

local function read(path)
  local f = io.open(path, "rb")
  if not f then return nil end
  local text = f:read("*a") -- nil of a folder
  f:close()
  return text
end


local function rendered(path)
  local pipe = assert(io.popen("cmark-gfm -e table " .. system.quoted(path) .. " 2>/dev/null"))
  local text = pipe:read("*a")
  pipe:close()
  if text == "" then error("cannot read " .. path .. " by cmark-gfm: `make deps` installs it", 0) end
  return text
end

-- "docs/../src/moth.h" -> "src/moth.h"
local function resolved(path)
  local parts = {}
  for part in path:gmatch("[^/]+") do
    if part == ".." then parts[#parts] = nil elseif part ~= "." then parts[#parts + 1] = part end
  end
  return table.concat(parts, "/")
end

-- A heading's anchor, as GitHub makes it.
local function slug(heading)
  return (heading:gsub("<.->", ""):gsub("&%w+;", ""):lower():gsub("[^%w _-]", ""):gsub(" ", "-"))
end

--- Writes the pages of the guides of a source tree by write(path, text). Files of the sources to which they lead become
-- pages, too; folders are named only. Returns { { title, path, first sentence } }, and the text of docs/index.md as
-- seen from the folder above, or nil.
function M.write(root, write)
  local names = { "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/RESULTS.md" }
  local entries, sources = {}, {}
  local index
  local pipe = assert(io.popen(("cd %s && ls docs/*.md"):format(system.quoted(root))))
  for path in pipe:lines() do names[#names + 1] = path end
  pipe:close()
  local known = {}
  for _, path in ipairs(names) do known[path] = path:match("([^/]+)%.md$") .. ".html" end
  local function source(path)
    local page = "sources/" .. path:gsub("/", "-") .. ".html"
    if sources[path] == nil then
      local text = read(root .. "/" .. path)
      sources[path] = text ~= nil
      if text then
        local n = 0
        text = (html.escape(text) .. "\n"):gsub("(.-)\n", function(line)
          n = n + 1
          return ('<a id="L%d"></a>%s\n'):format(n, line)
        end)
        write(page, html.page(path, "../", ("<h1>%s</h1>\n<pre>%s</pre>"):format(path, text)))
      end
    end
    return sources[path] and page
  end
  for _, path in ipairs(names) do
    local folder = path:match("^(.*/)") or ""
    local text = rendered(root .. "/" .. path)
    text = text:gsub("<h(%d)>(.-)</h%1>", function(level, title)
      return ('<h%s id="%s">%s</h%s>'):format(level, slug(title), title, level)
    end)
    text = text:gsub('<img src="([^":]+)"', function(target)
      local from = resolved(folder .. target)
      write("guides/" .. from:match("[^/]+$"), assert(read(root .. "/" .. from), from))
      return ('<img src="%s"'):format(from:match("[^/]+$"))
    end)
    text = text:gsub('<a href="([^":#]*)(#?[^":]*)">(.-)</a>', function(target, anchor, label)
      if target == "" then return nil end
      local to = resolved(folder .. target)
      local is_file = to:find("%.%w+$")
      local url = known[to] or is_file and source(to) and "../" .. source(to)
      if is_file and not url then return nil end -- it stays, and the check of the links names it
      return url and ('<a href="%s%s">%s</a>'):format(url, anchor, label) or label
    end)
    local title = html.unescaped(text:match("<h1.->(.-)</h1>"):gsub("<.->", ""))
    local first = html.unescaped((text:match("<p>(.-[.:])%s") or ""):gsub("<.->", ""):gsub("%s+", " "))
    write("guides/" .. known[path], html.page(title, "../", text))
    if path == "docs/index.md" then -- the same, seen from one folder above
      index = text:gsub(' (%l+)="([^"#:]+)(#?[^":]*)"', function(kind, target, anchor)
        if kind ~= "href" and kind ~= "src" then return nil end
        return (' %s="%s%s"'):format(kind, resolved("guides/" .. target), anchor)
      end)
    end
    entries[#entries + 1] = { title, "guides/" .. known[path], first }
  end
  return entries, index
end

return M
