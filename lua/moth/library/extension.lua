--- moth.cpp_extension: libraries of C, C++ and CUDA C that define ops (MOTH_LIBRARY, moth.h), compiled when they are
-- loaded.
--
--     local ext = moth.cpp_extension.load { name = "my_ext", sources = { "add.c", "add.cu" }, verbose = true }
--     ext.add(x, y)
--
-- Compiled libraries are cached under $MOTH_EXTENSIONS (else ~/.cache/moth/extensions), by a hash of sources, the
-- headers beside them, flags, compilers and moth's own headers.
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local system = require "moth.utils.system"
local toolchain = require "moth.utils.toolchain"
local M = {}

local quoted, read, output = toolchain.quoted, toolchain.read, toolchain.output

-- An absolute path without /./ and /../
local function plain(path)
  if path:sub(1, 1) ~= "/" then path = output("pwd"):match("[^\n]*") .. "/" .. path end
  local parts = {}
  for part in path:gmatch("[^/]+") do
    if part == ".." then parts[#parts] = nil elseif part ~= "." then parts[#parts + 1] = part end
  end
  return "/" .. table.concat(parts, "/")
end

local lua_folder = debug.getinfo(1, "S").source:match("^@(.*)/library/[^/]*$") or "lua/moth"

--- The folder of libmoth.so, in a list.
function M.library_paths() return { plain(B.library_path()) } end

--- The folders of moth's headers: those of the tree that moth was built in, or beside its Lua files.
function M.include_paths()
  local here = B.library_path()
  for _, dirs in ipairs({ { here .. "/../src", here .. "/gen" }, { lua_folder .. "/include" } }) do
    if read(dirs[1] .. "/moth.h") and read(dirs[#dirs] .. "/moth_ops.h") then
      for i, dir in ipairs(dirs) do dirs[i] = plain(dir) end
      return dirs
    end
  end
  check.fail("[cpp_extension] there is no moth.h in %s/include; install moth again", lua_folder)
end

--- The file for Makefiles of libraries that are built ahead of time; its head tells how it is used.
function M.makefile() return plain(lua_folder .. "/library/extension.mk") end

-- nvcc; where CUDA is emulated, that of the emulation, in the tree that moth was built in.
local function find_nvcc()
  if os.getenv("MOTH_CUDA") == "emu" then
    local path = (system.getenv("MOTH_CUDA_EMU_SOURCE") or B.library_path() .. "/..") .. "/src/emu/nvcc.lua"
    return read(path) and path or check.fail("[cpp_extension.load] there is no %s: MOTH_CUDA_EMU_SOURCE names moth's \z
      tree", path)
  end
  return toolchain.nvcc()
end

local compilers = { c = "cc", cc = "c++", cpp = "c++", cxx = "c++", cu = "nvcc" }

local function list(o, key)
  local v = o[key] or {}
  if type(v) == "string" then v = { v } end
  for _, text in ipairs(v) do
    if type(text) ~= "string" then check.fail("[cpp_extension.load] option '%s': expected a list of texts", key) end
  end
  return v
end

-- The same as a part of a command: each is one argument.
local function arguments(o, key)
  local out = {}
  for i, text in ipairs(list(o, key)) do out[i] = quoted(text) end
  return table.concat(out, " ")
end

local function folder_of(path) return path:match("^(.*)/[^/]*$") or "." end

-- The commands that make `target`, the object files, and the hash of all that the result depends on.
local function plan(o, sources, target)
  local includes = {}
  for _, dir in ipairs(M.include_paths()) do includes[#includes + 1] = "-I" .. quoted(dir) end
  for _, dir in ipairs(list(o, "extra_include_paths")) do includes[#includes + 1] = "-I" .. quoted(dir) end
  local flags = table.concat(includes, " ")
  local depends = { flags, B.version_string }
  for _, dir in ipairs(M.include_paths()) do
    for _, name in ipairs({ "moth.h", "moth_ops.h", "moth_dtypes.h" }) do
      depends[#depends + 1] = read(dir .. "/" .. name)
    end
  end
  local commands, objects, seen, cuda = {}, {}, {}, false
  for i, path in ipairs(sources) do
    local text, kind = read(path), compilers[path:match("%.(%w+)$") or ""]
    if not text then check.fail("[cpp_extension.load] cannot read %s", path) end
    if not kind then check.fail("[cpp_extension.load] %s: expected a .c, .cc, .cpp, .cxx or .cu file", path) end
    depends[#depends + 1] = path .. "\n" .. text
    local folder = folder_of(path)
    if not seen[folder] then
      seen[folder] = true
      depends[#depends + 1] = output(("cat %s/*.h %s/*.hpp %s/*.cuh 2>/dev/null"):format(quoted(folder), quoted(folder),
        quoted(folder)))
    end
    local compiler = kind == "cc" and (os.getenv("CC") or "cc") or kind == "c++" and (os.getenv("CXX") or "c++")
      or find_nvcc()
      or check.fail("[cpp_extension.load] %s needs nvcc, which is not there; set NVCC or CUDA_HOME", path)
    objects[i] = quoted(("%s.%d.o"):format(target, i))
    local own = kind == "nvcc" and "-O2 -Xcompiler -fPIC " .. arguments(o, "extra_cuda_cflags")
      or "-O2 -fPIC " .. arguments(o, "extra_cflags")
    commands[i] = ("%s %s %s -c -o %s %s"):format(quoted(compiler), own, flags, objects[i], quoted(path))
    local version, runs = output(quoted(compiler) .. " --version")
    if not runs then
      check.fail("[cpp_extension.load] %s needs the compiler '%s', which does not run; install gcc and g++, or \z
        set CC and CXX", path, compiler)
    end
    depends[#depends + 1] = own .. version
    cuda = cuda or kind == "nvcc"
  end
  local here = quoted(B.library_path())
  local linker = cuda and quoted(find_nvcc()) .. " -shared -cudart shared -Xlinker -rpath," .. here
    or "c++ -shared -Wl,-rpath," .. here
  commands[#commands + 1] = ("%s -o %s %s -L%s -l:%s %s"):format(linker, quoted(target), table.concat(objects, " "),
    here, B.soname, arguments(o, "extra_ldflags"))
  depends[#depends + 1] = linker .. arguments(o, "extra_ldflags")
  return commands, objects, B.sha256(table.concat(depends, "\0"))
end

-- Where libraries are kept.
local function folder_for(options)
  local root = options.build_directory or system.getenv("MOTH_EXTENSIONS")
  if not root then return toolchain.folder "extensions" end
  local said, made = output("mkdir -p " .. quoted(root))
  if not made then check.fail("[cpp_extension.load] %s", said) end
  return root
end

--- Compiles sources unless the library is cached, loads it and returns its ops by their names without the namespace.
-- options: name, sources; extra_cflags, extra_cuda_cflags, extra_ldflags, extra_include_paths (lists); build_directory;
-- verbose = true prints the commands.
function M.load(options)
  check.options("cpp_extension.load", options, "name sources extra_cflags extra_cuda_cflags extra_ldflags \z
    extra_include_paths build_directory verbose")
  local name, sources = options.name, list(options, "sources")
  if type(name) ~= "string" or not name:find("^[%a_][%w_]*$") then
    check.fail("[cpp_extension.load] option 'name': expected a name such as 'my_ext', got %s", tostring(name))
  elseif #sources == 0 then
    check.fail("[cpp_extension.load] option 'sources': expected a list of files")
  end
  local root = folder_for(options)
  -- The hash does not depend on where the result is written.
  local _, _, hash = plan(options, sources, "")
  local path, found = toolchain.keep {
    folder = root, name = ("%s_%s.so"):format(name, hash:sub(1, 16)),
    make = function(work)
      local commands, objects = plan(options, sources, work)
      for _, command in ipairs(commands) do
        if options.verbose then print(command) end
        local text, ok = output(command)
        if options.verbose and text ~= "" then print(text) end
        if not ok then
          output("rm -f " .. table.concat(objects, " "))
          return nil, command .. "\n" .. text
        end
      end
      output("rm -f " .. table.concat(objects, " "))
      return true
    end,
  }
  if not path then check.fail("[cpp_extension.load] %s", found) end
  if found and options.verbose then print("found " .. path) end
  local ops = {}
  for _, full in ipairs(B.load_library(path)) do
    ops[full:match("::(.*)$")] = require("moth.dispatch.ops").object(full)
  end
  return ops
end

-- The languages that load_inline takes: PyTorch's names, the ends of files.
local inline = { { "c_sources", "c" }, { "cpp_sources", "cpp" }, { "cuda_sources", "cu" } }

--- load, of sources that are texts: c_sources, cpp_sources, cuda_sources (a text or a list each). The other options are
-- those of load. moth.h and moth_ops.h are included before each.
function M.load_inline(options)
  check.options("cpp_extension.load_inline", options, "name c_sources cpp_sources cuda_sources extra_cflags \z
    extra_cuda_cflags extra_ldflags extra_include_paths build_directory verbose")
  local own, texts, all = {}, {}, {}
  for key, value in each(options) do own[key] = value end
  for _, language in ipairs(inline) do
    own[language[1]] = nil
    local head = "#include <moth.h>\n#include <moth_ops.h>\n"
    if language[2] ~= "c" then head = 'extern "C" {\n' .. head .. "}\n" end
    for i, text in ipairs(list(options, language[1])) do
      text = ('%s#line 1 "%s, text %d"\n%s\n'):format(head, language[1], i, text) -- for the compiler's messages
      texts[#texts + 1] = { ("source_%d.%s"):format(#texts + 1, language[2]), text }
      all[#all + 1] = text
    end
  end
  if #texts == 0 then
    check.fail("[cpp_extension.load_inline] expected c_sources, cpp_sources or cuda_sources: texts, or lists of texts")
  end
  local folder = ("%s/inline_%s"):format(folder_for(options), B.sha256(table.concat(all, "\0")):sub(1, 16))
  output("mkdir -p " .. quoted(folder))
  own.sources = {}
  for i, t in ipairs(texts) do
    own.sources[i] = folder .. "/" .. t[1]
    if read(own.sources[i]) ~= t[2] then
      local f, why = io.open(own.sources[i], "wb")
      if not f then check.fail("[cpp_extension.load_inline] %s", why) end
      f:write(t[2])
      f:close()
    end
  end
  return M.load(own)
end

return signature.all(M, { "cpp_extension.load(table options)", "cpp_extension.load_inline(table options)",
  "cpp_extension.include_paths()",
  "cpp_extension.library_paths()", "cpp_extension.makefile()" })
