--- Entries of the reference as HTML: the same words as entry.text, in the same order.
local M = {}

local style = [[
body { max-width: 60em; margin: 1em auto; padding: 0 1em; font: 16px/1.5 sans-serif }
body { color: #222; background: #fff }
h1 { font-size: 1.6em } h2 { font-size: 1.25em; margin-top: 2em } a { color: #0b57a4; text-decoration: none }
a:hover { text-decoration: underline }
nav { display: flex; gap: 1em; align-items: baseline; border-bottom: 1px solid #ccc }
nav form { margin-left: auto } input { font: inherit; padding: .2em .5em } pre, code { font: 14px/1.45 monospace }
pre { background: #f4f4f1; padding: .6em .8em; overflow-x: auto; white-space: pre-wrap } .place { color: #666 }
table { border-collapse: collapse }
td, th { text-align: left; vertical-align: top; padding: .25em .8em .25em 0; border-bottom: 1px solid #eee }
td pre { margin: 0 } .names { columns: 14em } .names a { display: block } img { max-width: 100% }
.names { overflow-wrap: anywhere }
@media (prefers-color-scheme: dark) { body { background: #1b1b1b; color: #ddd } a { color: #7ab8f5 }
pre { background: #262626 }
td, th { border-color: #333 } }]]

--- Text with what HTML reads as its own replaced.
function M.escape(text)
  return (text:gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }))
end

local characters = { amp = "&", lt = "<", gt = ">", quot = '"' }
--- The opposite of escape.
function M.unescaped(text)
  return (text:gsub("&(%a+);", characters))
end

--- Links at the top of each page, { { label, address from the folder of the index } }; pages.write sets them.
M.top = {}

--- A page that needs no other file. `up`: the path from it to the folder of index.html, "" or "../".
function M.page(title, up, body)
  local top = {}
  for i, link in ipairs(M.top) do top[i] = (' <a href="%s%s">%s</a>'):format(up, link[2], link[1]) end
  return ([[
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>%s</title><style>%s</style></head><body>
<nav><a href="%sindex.html">moth</a>%s
<form action="%sindex.html"><input name="q" placeholder="search" aria-label="search"></form></nav>
%s
</body></html>
]]):format(M.escape(title), style, up, table.concat(top), up, body)
end

local function code(text, link)
  return (M.escape(text):gsub("%f[%w_]([%a_][%w_]*)%(", function(name)
    local url = link(name)
    return url and ('<a href="%s">%s</a>('):format(url, name) or nil
  end))
end

-- A doc comment: paragraphs, and indented lines as they stand; `words` between backquotes are code.
local function prose(doc)
  local out, block = {}, {}
  local function flush()
    if #block > 0 then out[#out + 1] = "<pre>" .. M.escape(table.concat(block, "\n")) .. "</pre>" end
    block = {}
  end
  for line in (doc .. "\n"):gmatch("(.-)\n") do
    if line:find("^%s") then
      block[#block + 1] = line
    elseif line == "" and #block > 0 then
      block[#block + 1] = ""
    else
      while block[#block] == "" do block[#block] = nil end
      flush()
      if line ~= "" then out[#out + 1] = "<p>" .. M.escape(line):gsub("`([^`]+)`", "<code>%1</code>") .. "</p>" end
    end
  end
  while block[#block] == "" do block[#block] = nil end
  flush()
  return table.concat(out, "\n")
end

--- What stands on a page of an entry. link(name): the address of the page of an op, or nil; link_field(name): that of
-- a field of the entry, or nil. `level`: the heading, "h1" or "h2".
function M.entry(entry, level, link, link_field)
  local out = {}
  local function add(...) out[#out + 1] = string.format(...) end
  add('<%s id="%s">%s</%s>', level, M.escape(entry.path:match("[^.]+$")), M.escape(entry.path), level)
  add("<pre>%s</pre>", M.escape(entry.head))
  if entry.doc then out[#out + 1] = prose(entry.doc) end
  if entry.place then
    local place = entry.place:gsub("^/.*/(lua/moth/)", "%1") -- not the folders of this machine
    add('<p class="place">defined at %s%s</p>', M.escape(place), entry.op and (" (%s)"):format(entry.kind) or "")
  end
  if entry.rows then
    add("<table>")
    for _, row in ipairs(entry.rows) do
      local text = row[2]
      local lines = text:match("^\n(.*)$")
      if lines then text = lines:gsub("^    ", ""):gsub("\n    ", "\n") end
      add("<tr><th>%s</th><td><pre>%s</pre></td></tr>", M.escape(row[1]), code(text, link))
    end
    add("</table>")
  end
  if entry.fields then
    add('<p>%s</p><div class="names">', entry.fields[1])
    for _, name in ipairs(entry.fields[2]) do
      local url = link_field(name)
      add(url and '<a href="%s">%s</a>' or "%s<span>%s</span>", url or "", M.escape(name))
    end
    add("</div>")
  end
  if entry.members then
    add("<table>")
    for _, member in ipairs(entry.members) do
      local name, url = M.escape(member[1]), link_field(member[1])
      add("<tr><td>%s</td><td>%s</td></tr>", url and ('<a href="%s">%s</a>'):format(url, name) or name,
        M.escape(member[2]))
    end
    add("</table>")
  end
  return table.concat(out, "\n")
end

return M
