#!/usr/bin/env luajit
-- The emulation's nvcc: as much of its command line as moth.cpp_extension uses, on g++. Sources are compiled against
-- cudaemu.h, after launches were rewritten (launch.h) and `extern __shared__ T x[];`. Launches in headers are not.
--
--     nvcc.lua [options] -c -o FILE.o FILE.cu      nvcc.lua [options] -shared -o FILE.so FILE.o ... -lmoth
--     nvcc.lua --version
local here = arg[0]:match("^(.*)/[^/]*$") or "."
local root = here .. "/../.."

local function quoted(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("*a")
  f:close()
  return text
end

-- Where the comment, string or character that begins at i ends; nil if none does.
local function skipped(text, i)
  local two = text:sub(i, i + 1)
  if two == "//" then return (text:find("\n", i, true) or #text) end
  if two == "/*" then return select(2, text:find("*/", i + 2, true)) or #text end
  local quote = two:match("^[\"']")
  if not quote then return nil end
  while true do
    i = text:find("[\\" .. quote .. "]", i + 1)
    if not i then return #text end
    if text:sub(i, i) == quote then return i end
    i = i + 1
  end
end

-- Where the kernel begins whose launch stands behind it: a name, perhaps qualified, perhaps with template arguments.
local function kernel_start(text)
  local at = #text - #text:match("%s*$")
  if text:sub(at, at) == ">" then
    local depth = 0
    repeat
      local c = text:sub(at, at)
      depth = depth + (c == ">" and 1 or c == "<" and -1 or 0)
      at = at - 1
    until depth == 0 or at == 0
  end
  while at > 0 and text:sub(at, at):find("[%w_:]") do at = at - 1 end
  return at + 1
end

-- The source as g++ takes it. Line breaks stay where they are.
local function rewritten(text)
  local out, i = "", 1
  while i <= #text do
    local last = skipped(text, i)
    if last then
      out, i = out .. text:sub(i, last), last + 1
    elseif text:sub(i, i + 2) == "<<<" then
      local close = text:find(">>>", i, true)
      if not close then error("<<< without >>>", 0) end
      local start = kernel_start(out)
      local kernel = out:sub(start)
      out = ("%sMothEmuLaunch(%s).of(R\"(%s)\", [=](auto... a) { %s(a...); })"):format(out:sub(1, start - 1),
        text:sub(i + 3, close - 1), kernel, kernel)
      i = close + 3
    else
      local next_ = text:find("[/\"'<]", i + 1) or #text + 1
      out, i = out .. text:sub(i, next_ - 1), next_
    end
  end
  return (out:gsub("extern%s+__shared__%s+([%w_:<> ]-)%s+([%w_]+)%s*%[%s*%]%s*;",
    "%1 *%2 = static_cast<%1 *>(moth_emu_shared());"))
end

local compiler = os.getenv("CXX") or "g++"
local command, sources, output = { quoted(compiler) }, {}, nil
local i = 1
while i <= #arg do
  local a = arg[i]
  if a == "--version" then
    print("nvcc of moth's emulation, on")
    os.exit(os.execute(("%s --version; cat %s/*.h | cksum"):format(quoted(compiler), quoted(here))) == 0 and 0 or 1)
  elseif a == "-o" then
    i = i + 1
    output = arg[i]
  elseif a == "-Xcompiler" or a == "-Xlinker" then -- a list with commas
    i = i + 1
    for option in arg[i]:gmatch("[^,]+") do
      command[#command + 1] = quoted(a == "-Xlinker" and "-Wl," .. option or option)
    end
  elseif a == "-cudart" then
    i = i + 1
  elseif a:find("%.cu$") then
    sources[#sources + 1] = a
  elseif not a:find("^%-") or a:find("^%-[DILUWcgl]") or a:find("^%-O%d") or a == "-shared" then
    command[#command + 1] = quoted(a)
  end -- others are nvcc's own
  i = i + 1
end
command[#command + 1] = "-o " .. quoted(assert(output, "nvcc.lua: -o FILE is missing"))

if #sources == 0 then -- linking; -Xlinker -rpath,DIR is two options of the linker
  command[#command + 1] = "-lmoth_emu"
  os.exit(os.execute((table.concat(command, " "):gsub("'%-Wl,%-rpath' '%-Wl,([^']*)'", "'-Wl,-rpath,%1'"))) == 0
    and 0 or 1)
end
local source = output .. ".cc"
local f = assert(io.open(source, "wb"))
f:write(("#line 1 %q\n"):format(sources[1]), rewritten(read(sources[1])))
f:close()
local status = os.execute(("%s -std=c++20 -fwrapv -fno-strict-aliasing -include emu/launch.h -I%s -I%s -iquote %s \z
  -x c++ %s"):format(table.concat(command, " "), quoted(root .. "/src"), quoted(here .. "/toolkit"),
  quoted(sources[1]:match("^(.*)/[^/]*$") or "."), quoted(source)))
os.remove(source)
os.exit(status == 0 and 0 or 1)
