--- Programs that NVRTC has compiled, cached: the same text is compiled once for each architecture, and its image is
-- kept in the user's folder.
local B = require "moth_lua"
local toolchain = require "moth.utils.toolchain"
local C = B.cuda

local M = {}

local programs = {}

local LIMIT = 256 * 2 ^ 20 -- bytes of compiled programs that are kept

-- What compiles: its version. An emulation is as old as its library.
local version
local function compiler()
  if not version then
    local i, name, number = 1, C.library(1)
    while name and name ~= "NVRTC" do
      i = i + 1
      name, number = C.library(i)
    end
    version = ("NVRTC %s"):format(tostring(number))
    if os.getenv("MOTH_CUDA") == "emu" then
      local library = toolchain.quoted(B.library_path()) .. "/libmoth_cudaemu.so"
      version = version .. toolchain.output("stat -c '%s %Y' " .. library)
    end
  end
  return version
end

M.compiler = compiler

-- The program, compiled where it was not yet: its image is kept in the user's folder, by a hash of all that it comes
-- from.
local function program(key, ...)
  local folder = toolchain.folder("cuda")
  if not folder then return (C.program(...)) end
  local name = B.sha256(table.concat({ key, compiler(), B.version_string }, "\0")):sub(1, 32) .. ".cubin"
  local made
  local arguments = { n = select("#", ...), ... }
  local function make(work)
    local ok, p, image = pcall(C.program, unpack(arguments, 1, arguments.n))
    if not ok then error(p, 0) end
    made = p
    local file, message = io.open(work, "wb")
    if not file then return nil, message end
    file:write(image)
    file:close()
    return true
  end
  for _ = 1, 2 do
    made = nil
    local path = toolchain.keep { folder = folder, name = name, make = make, limit = LIMIT }
    if made then return made end
    local image = path and toolchain.kept(path)
    if image then
      arguments[arguments.n + 1] = image
      local ok, p = pcall(C.program, unpack(arguments, 1, arguments.n + 1))
      if ok then return p end
      os.remove(path)
    end
  end
  return (C.program(...))
end

--- The architecture of a device: "9.0".
function M.architecture(device)
  local p = C.properties(device)
  return ("%d.%d"):format(p.major, p.minor)
end

--- The program of a source in CUDA C++ for a device, with these kernels; headers by their names, in two lists.
function M.new(device, source, names, header_names, headers, options)
  header_names, headers, options = header_names or {}, headers or {}, options or {}
  local key = table.concat({ M.architecture(device), table.concat(names, "\1"), table.concat(header_names, "\1"),
    table.concat(headers, "\1"), table.concat(options, "\1"), source }, "\0")
  programs[key] = programs[key] or program(key, device, names[1] .. ".cu", source, names, header_names, headers,
    options)
  return programs[key]
end

return M
