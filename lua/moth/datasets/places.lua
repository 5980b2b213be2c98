--- Where the files of a data set lie: in a folder, by default ./data, then in $MOTH_DATA, in each directly or in a
-- subfolder.
local B = require "moth_lua"
local check = require "moth.utils.check"
local md5 = require "moth.utils.md5"
local system = require "moth.utils.system"

local M = {}

--- The folders to look in.
function M.all(root, subfolders)
  local out = {}
  for _, base in ipairs({ root or "data", system.getenv("MOTH_DATA") }) do
    out[#out + 1] = base
    for _, folder in ipairs(subfolders) do out[#out + 1] = base .. "/" .. folder end
  end
  return out
end

--- The paths of files that lie in one folder, from one of several sets of names; and which set it is. Raises where none
-- is whole. hint: how the files get there.
function M.find(where, root, subfolders, sets, hint)
  local missing
  local folders = M.all(root, subfolders)
  for _, place in ipairs(folders) do
    for k, names in ipairs(sets) do
      local paths, lacks = {}, nil
      for i, name in ipairs(names) do
        paths[i] = place .. "/" .. name
        if not system.exists(paths[i]) then lacks = lacks or paths[i] end
      end
      if not lacks then return paths, k end
      if lacks ~= paths[1] then missing = missing or lacks end
    end
  end
  check.fail("%s: %s in %s\nHINT: %s there, or set MOTH_DATA", where,
    missing and missing .. " is missing, others are there" or ("there is no %s"):format(sets[1][1]),
    table.concat(folders, ", "), hint)
end

--- The bytes of a file, uint8.
function M.bytes(path) return B.media.map_file(path, B.dtype "uint8", 0, -1) end

--- Raises unless the bytes have this MD5 sum.
function M.verify(where, path, bytes, sum)
  local is = md5("", bytes:data(), bytes:numel())
  if is ~= sum then
    check.fail("%s: %s is damaged, or another file: its MD5 is %s, expected %s\nHINT: check = false reads it \z
      nevertheless", where, path, is, sum)
  end
end

return M
