-- The generator: reads the op table, writes build/gen. Run as
--   luajit src/ops/gen.lua OUT ["generic avx2 avx512" "generic avx2"]
-- with the instruction sets of the processor's kernels, and those to build; with --edge it writes what the edge library is
-- compiled of (edge.lua).
--   moth_ops.h   one typed C entry per op, for users; ops/<family>.h: the same by family, for our own sources
--   unpack/<family>.h   for kernels: arguments by name
--   ops_<family>.c   the records of a family, with their entries; ops.c: all of them, for the registry
--   shapes.c     the shape rules that are patterns, or follow from the kind
--   composite.c  the composites that are expressions
--   backward.c   one backward function per differentiable op
--   kernels/     per dtype and ISA level: the loops of pointwise ops, and the typed kernels; levels.h: what is built
--   cuda/        the same for CUDA, per dtype, and the table of kernels
--   layout.h     a hash of what libmoth and a device's library must agree on
--   moth/cdef.lua    the public C API for LuaJIT's FFI
--   moth/ops_table.lua   the records as Lua sees them: for describe, docs, specs and lua/moth/records
--   moth/records/*.lua   the language of their expressions
--   moth/func.lua and others   modules under their short names
local here = arg[0]:match("^(.*)/[^/]*$") or "."
package.path = here .. "/?.lua;" .. package.path
-- Modules of the build that are installed, too: moth.codegen, moth.lang. Here they run from the sources.
local root = here:gsub("/?src/ops$", "")
if root == "" then root = "." end
table.insert(package.loaders, function(name)
  local folder, file = name:match("^moth%.(%l+)%.(%w+)$")
  local path = folder == "codegen" and "/src/codegen/" or folder == "lang" and "/lua/moth/lang/"
  return path and assert(loadfile(root .. path .. file .. ".lua"))
end)
local batch = require "batch"
local composite = require "composite"
local fields = require "fields"
local schema = require "schema"
local formula = require "formula"
local formulas = require "moth.codegen.formulas"
local kernels = require "kernels"
local reductions = require "reductions"
local shapes = require "shapes"
local steps = require "steps"
local writers = require "writers"

local out_dir = assert(arg[1], "usage: luajit gen.lua OUT")

local function read(path)
  local f = io.open(path, "rb")
  if not f then return nil end
  local s = f:read("*a")
  f:close()
  return s
end

-- Writes a file only if its content changes, so that make does not rebuild its users. `written`: their names, in order.
local written = {}
local function write(name, text)
  local path = out_dir .. "/" .. name
  written[#written + 1] = name
  written[name] = true
  if read(path) == text then return end
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

-- The C text of all files of folders, to check that the functions named in records exist.
local function sources(...)
  local parts = {}
  for _, glob in ipairs({ ... }) do
    local p = io.popen("cat " .. root .. "/" .. glob .. " 2>/dev/null")
    parts[#parts + 1] = p:read("*a")
    p:close()
  end
  return table.concat(parts, "\n")
end

-- Reports mistakes in records as messages that begin with file and line, without a traceback.
local function checked(fn, ...)
  local ok, a, b = pcall(fn, ...)
  if ok then return a, b end
  io.stderr:write(tostring(a), "\n")
  os.exit(1, true)
end

local ops, by_name = checked(schema.load, here)
local text = {
  shape = sources("src/dispatch/*.c"),
  cpu = sources("kernels/cpu/*.c", "src/comm/*.c"),
  cuda = sources("kernels/cuda/*.cu"),
  composite = sources("src/composite/*.c"),
  math = sources("kernels/math*.h"),
  lanes = sources("kernels/cpu/lanes.h"),
  formulas = sources("src/autograd/*.h"),
}

-- The place of each function that a record may name: symbol -> "kernels/cpu/sort.c:41", for traces.
local defined = {}
for _, glob in ipairs { "kernels/cpu/*.c", "src/comm/*.c", "kernels/cuda/*.cu", "src/composite/*.c", "src/dispatch/*.c" } do
  local p = io.popen(("cd %s && grep -HnoE '^MothStatus moth_(cpu|cuda|composite|shape)_[a-z0-9_]+' %s 2>/dev/null"):format(
    root, glob))
  for line in p:lines() do
    local place, symbol = line:match("^(.-:%d+):MothStatus ([%w_]+)")
    if place and not defined[symbol] then defined[symbol] = place end
  end
  p:close()
end

-- Functions that derivatives may call beside ops: every moth_grad_<name>, moth_gradset_<name> and moth_gradlist_<name>
-- that is declared. Name -> C function.
local helpers = {}
for name in text.formulas:gmatch("moth_grad_([%w_]+)%(") do helpers[name] = "moth_grad_" .. name end
for name in text.formulas:gmatch("moth_gradset_([%w_]+)%(") do helpers["set " .. name] = true end

-- The references that records name, from the specs: nil where these are not there, as in an unpacked release.
local references
if read(root .. "/spec/ops/references.lua") then
  local path = package.path
  package.path = root .. "/spec/?.lua;" .. path
  references = require "ops.references"
  package.path = path
end

local problems = {}
local function need(op, where, symbol)
  if not text[where]:find("[%s%*]" .. symbol .. "%(") then
    problems[#problems + 1] = ("%s: %s: there is no %s in %s"):format(op.place, op.name, symbol,
      ({ shape = "src/dispatch", cpu = "kernels/cpu", cuda = "kernels/cuda", composite = "src/composite", math = "kernels/math*.h" })[where])
  end
end

local function complete(op)
  local stem = op.name:gsub("_$", "_inplace")
  if op.kind == "pointwise" then
    op.cpu, op.cuda_kernel, op.shape = "moth_cpu_pointwise", "moth_cuda_pointwise", "pointwise"
    need(op, "math", "m_" .. op.scalar)
    op.lanes = text.lanes:find("LANES_m_" .. op.scalar .. "(", 1, true) and "LANES_m_" .. op.scalar
  elseif op.kind == "composite" then
    op.composite = "moth_composite_" .. stem
    if op.expr then
      op.composite_text = composite.text(op, by_name)
    else
      need(op, "composite", op.composite)
    end
  elseif op.kind ~= "view" then
    op.cpu = "moth_cpu_" .. op.name
    op.cuda_kernel = "moth_cuda_" .. op.name
    local own = text.cpu:find("%s" .. op.cpu .. "%(")
    op.is_generated_step = not own and steps.is_step(op)
    if op.is_generated_step and op.kernel == "all devices" then
      op.composite_text, op.is_generated_step = composite.step(op, by_name), false
      defined[op.cpu], own = op.place, true
    end
    local shared = not own and reductions.kernel_of(op)
    if shared then op.cpu, op.cuda_kernel = "moth_cpu_" .. shared, "moth_cuda_" .. shared end
    if not op.is_generated_step and not op.composite_text then need(op, "cpu", op.cpu) end
    op.all_devices = op.kernel == "all devices"
    if op.all_devices and not text.cuda:find(" " .. op.cuda_kernel .. "(", 1, true) then
      op.cuda_kernel = nil
    elseif not op.is_generated_step then
      need(op, "cuda", op.cuda_kernel)
    end
  end
  fields.check(op, by_name)
  op.batch_rule, op.batched, op.batched_ndim = batch.rule(op)
  if op.decompose then
    op.decomposed = "moth_decomposed_" .. stem
    op.decomposed_text = composite.text(op, by_name, op.decomposed, op.decompose)
  end
  if references and op.reference and not references[op.reference] then
    problems[#problems + 1] = ("%s: %s: there is no reference '%s' in spec/ops/references*.lua"):format(op.place, op.name,
      op.reference)
  end
  if op.shape and op.shape ~= "dynamic" then
    need(op, "shape", "moth_shape_" .. op.shape)
  elseif not op.shape and op.kind ~= "composite" then
    op.shape, op.shape_text = op.name, shapes.text(op)
  end
  if type(op.grad) == "table" then
    op.backward, op.saves_for, op.geometry, op.differentiable = formula.backward(op, by_name, helpers)
  elseif op.grad == "unimplemented" then
    local g = {}
    for _, a in ipairs(op.args) do if a.type == "TENSOR" then g[a.name] = "unimplemented" end end
    op.grad = g
    op.backward, op.saves_for, op.geometry, op.differentiable = formula.backward(op, by_name, helpers)
  elseif op.grad == "composite" and op.kind ~= "composite" then
    schema.fail(op, "only a composite has the derivative of its parts")
  end
end
checked(function()
  local ok, message = pcall(schema.each_checked, ops, complete)
  if ok and os.getenv("MOTH_GEN_FORCE") then return end
  if not ok then problems[#problems + 1] = message end
  if #problems > 0 then error(table.concat(problems, "\n"), 0) end
end)

for _, folder in ipairs { "kernels", "formulas", "cuda", "moth/codegen", "moth/records", "ops", "unpack" } do
  os.execute(("mkdir -p %s/%s"):format(out_dir, folder))
end
for _, op in ipairs(ops) do
  op.kernels = {}
  for key, symbol in pairs { [op.all_devices and "all" or "cpu"] = op.cpu or false, cuda = op.cuda_kernel or false, composite = op.composite or false,
    shape = op.shape and op.shape ~= "dynamic" and "moth_shape_" .. op.shape or false } do
    if symbol then
      op.kernels[key] = { symbol .. (op.kind == "pointwise" and key ~= "shape" and " of m_" .. op.scalar or ""),
        defined[symbol] or op.place } -- a composite that is an expression is in its record
    end
  end
end
local function names_of(pattern)
  local list = {}
  local p = io.popen("ls " .. pattern .. " 2>/dev/null")
  for path in p:lines() do list[#list + 1] = path end
  p:close()
  table.sort(list)
  return list
end
-- The sources that are compiled for each dtype: those of a folder `typed`, and of the folder around it the files with
-- typed kernels beside the entries of their ops (between #ifdef MOTH_REAL_KIND and #else).
local function families_of(pattern)
  local list = {}
  for _, path in ipairs(names_of(pattern)) do
    local source = read(path)
    if path:find("/typed/", 1, true) or source:find("\nMOTH_TYPED") then
      list[#list + 1] = { name = path:match("([%w_]+)%.%w+$"), path = path:match("kernels/.*$"), text = source }
    end
  end
  return list
end
local reader = formulas.reader(function(name) return assert(read(root .. "/kernels/" .. name), name) end)
-- Removes files of earlier runs that were not written, and lists what is to be compiled, for the Makefile.
local function finish(more)
  local lists = { { "GEN_SOURCES", "%.c$" }, { "KERNEL_SOURCES", "^kernels/.*%.c$" }, { "CUDA_SOURCES", "%.cu$" } }
  local mk = {}
  for _, path in ipairs(names_of(("%s/*.c %s/kernels/*.c %s/cuda/*.cu"):format(out_dir, out_dir, out_dir))) do
    if not written[path:sub(#out_dir + 2)] then os.remove(path) end
  end
  for i, l in ipairs(lists) do
    local list = {}
    for _, name in ipairs(written) do
      if name:find(l[2]) and (i > 1 or not name:find("/")) then list[#list + 1] = out_dir .. "/" .. name end
    end
    mk[i] = l[1] .. " := " .. table.concat(list, " ")
  end
  local f = assert(io.open(out_dir .. "/sources.mk", "w"))
  f:write(table.concat(mk, "\n"), "\n", more and more .. "\n" or "")
  f:close()
end

write("block_types.h", require("blocks").header())
write("block_grids.h", require("blocks").grids())
if arg[2] == "--edge" then
  local files = names_of(("%s/kernels/cpu/*.[ch] %s/kernels/common/*.c"):format(root, root))
  for i, path in ipairs(files) do files[i] = path:match("kernels/.*$") end
  local needed = checked(require("edge").write, ops, by_name, { formulas = reader,
    read = function(path) return assert(read(root .. "/" .. path), path) end,
    families = families_of(("%s/kernels/cpu/typed/*.h %s/kernels/cpu/*.c"):format(root, root)) }, files,
    arg[3], arg[4] or "", write)
  finish("EDGE_KERNELS := " .. table.concat(needed, " "))
  os.exit(0, true)
end
-- The language of expressions, for lua/moth/records.
for _, name in ipairs({ "expr", "define" }) do
  write(("moth/records/%s.lua"):format(name), assert(read(("%s/%s.lua"):format(here, name))))
end
-- `require "moth.func"` and other short names.
for name, path in pairs(require "moth.lang.homes") do
  write(("moth/%s.lua"):format(name), ('require "moth"\nreturn require "moth.%s"\n'):format(path))
end
-- The C API of the edge runtime for LuaJIT's FFI.
write("moth/edge_cdef.lua", ("return [[\n%s]]\n"):format(assert(read(root .. "/src/edge/moth_edge.h")):gsub("/%*.-%*/", "")
  :gsub("#ifdef __cplusplus.-#endif", ""):gsub("#[^\n]*", ""):gsub("MOTH_EDGE_API ", ""):gsub("\n%s*\n+", "\n")))
-- The public header's text, with the header of dtypes that it includes.
local header = assert(read(root .. "/src/moth.h")):gsub('#include "moth_dtypes.h"\n', function()
  return assert(read(root .. "/src/moth_dtypes.h"))
end)
-- What libmoth and a library of a device must agree on: the ops with their arguments in order, and the headers of the
-- structs that both know. Comments and layout of the text do not count.
local function layout()
  local parts = {}
  for _, op in ipairs(ops) do parts[#parts + 1] = op.schema .. " " .. op.kind end
  for _, path in ipairs(names_of(("%s/src/moth*.h %s/src/core/*.h %s/src/device/*.h %s/src/dispatch/*.h \z
      %s/kernels/common/*.h"):gsub("%%s", root))) do
    parts[#parts + 1] = read(path):gsub("/%*.-%*/", " "):gsub("//[^\n]*", " "):gsub("%s+", " ")
  end
  local hash = 0xcbf29ce484222325ULL -- FNV-1a
  local all = table.concat(parts, "\n")
  for i = 1, #all do hash = bit.bxor(hash, all:byte(i)) * 0x100000001b3ULL end
  return bit.tohex(hash)
end
-- The parser and the checks, for ops that are defined at run time (lua/moth/library).
for _, name in ipairs({ "schema", "kinds", "patterns" }) do
  local module = assert(read(("%s/%s.lua"):format(here, name))):gsub('require "(%w+)"', 'require "moth.records.%1"')
    :gsub(" in pairs%(", " in each("):gsub("\nlocal M = {}\n", '\nlocal each = require "moth.each"\nlocal M = {}\n', 1)
  write(("moth/records/%s.lua"):format(name), module)
end
for i, field in ipairs { "isas", "built" } do
  if arg[i + 1] then kernels[field] = {} end
  for isa in (arg[i + 1] or ""):gmatch "%S+" do table.insert(kernels[field], isa) end
end
checked(writers.run, ops, by_name, { header = header, formulas = reader,
  read = function(path) return assert(read(root .. "/" .. path), path) end,
  families = families_of(("%s/kernels/cpu/typed/*.h %s/kernels/cpu/*.c"):format(root, root)),
  cuda_families = families_of(("%s/kernels/cuda/typed/*.cuh %s/kernels/cuda/*.cu"):format(root, root)) }, write)

-- The code generator, and the formulas that it prints, for generated kernels at run time.
for _, path in ipairs(names_of(root .. "/src/codegen/*.lua")) do
  write("moth/codegen/" .. path:match("([%w_]+%.lua)$"), read(path))
end
write("layout.h", ([[
/* Generated by src/ops/gen.lua: a hash of the op table and of the headers that libmoth and a device's library share. */
#define MOTH_LAYOUT "%s"
]]):format(layout()))
local texts = { "-- Generated by src/ops/gen.lua: files of kernels/ that generated kernels are made of.\nreturn {" }
for _, path in ipairs(names_of(("%s/kernels/math*.h %s/kernels/common/param.h %s/kernels/cpu/loop.h"):format(root, root, root))) do
  texts[#texts + 1] = ("  [%q] = %q,"):format(path:match("kernels/([%w_/]+%.h)$"), read(path))
end
write("moth/codegen/texts.lua", table.concat(texts, "\n") .. "\n}\n")

finish()
