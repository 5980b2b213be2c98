--- Checks the links of a folder of HTML: each file that a page names must be there, and each #id in it.
local system = require "moth.utils.system"
local M = {}

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("*a")
  f:close()
  return text
end

--- All files below a folder: { name = text }. Names are relative to it.
function M.files(folder)
  local found, pipe = {}, assert(io.popen("cd " .. system.quoted(folder) .. " && find . -type f"))
  for path in pipe:lines() do found[path:sub(3)] = read(folder .. "/" .. path:sub(3)) end
  pipe:close()
  return found
end

--- The links of these files that lead nowhere, by page: { "page.html -> target" }, and how many links there are. Links
-- to other sites are not followed; pictures and scripts must not need one.
function M.check(files)
  local dead, count, names, ids = {}, 0, {}, {}
  for path, text in require("moth.each")(files) do
    if path:find("%.html$") then
      names[#names + 1] = path
      for id in text:gmatch(' id="([^"]*)"') do ids[path .. "#" .. id] = true end
    end
  end
  table.sort(names)
  for _, path in ipairs(names) do
    for kind, url in files[path]:gmatch(' (%l+)="([^"]*)"') do
      if kind == "href" or kind == "src" then
        count = count + 1
        local target, id = url:match("^([^#]*)#?(.*)$")
        local to = target == "" and path or (path:match("^(.*/)") or "") .. target
        while to:find("[^/]+/%.%./") do to = to:gsub("[^/]+/%.%./", "", 1) end
        local outside = kind == "href" and url:find("^%l+:") and not url:find("^file:")
        if not outside and not (files[to] and (id == "" or ids[to .. "#" .. id])) then
          dead[#dead + 1] = path .. " -> " .. url
        end
      end
    end
  end
  return dead, count
end

return M
