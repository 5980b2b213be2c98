--- Programs of the tile IR on the CPU: printed as C, compiled once (moth.utils.toolchain), run by moth's threads.
local ffi = require "ffi"
local B = require "moth_lua"
local check = require "moth.utils.check"
local dialect = require "moth.codegen.tile_c"
local each = require "moth.each"
local formulas = require "moth.codegen.formulas"
local plan = require "moth.codegen.tile_plan"
local printer = require "moth.codegen.tile_print"
local tile = require "moth.codegen.tile"
local texts = require "moth.codegen.texts"
local toolchain = require "moth.utils.toolchain"

local M = {}

M.reader = formulas.reader(function(name) return texts[name] end)

ffi.cdef [[
typedef union { uint64_t p; int64_t i; double d; } MothKernelSlot;
typedef void (*MothKernelRange)(void *ctx, int64_t begin, int64_t end);
bool moth_parallel_for_launch(int64_t n, int64_t grain, MothKernelRange fn, void *ctx);
]]
ffi.cdef "void moth_kernel(MothKernelSlot *args, int64_t begin, int64_t end);"
local C = ffi.load(B.soname)
local Slots = ffi.typeof("MothKernelSlot[?]")

--- Whether kernels check each access to memory, which MOTH_KERNEL_CHECK says.
function M.checked() return os.getenv "MOTH_KERNEL_CHECK" == "1" end

--- The C text of a program, and the places of its accesses where these are checked (printer.fault).
function M.source(prog)
  plan.prepare(prog)
  return printer.print { prog = prog, dialect = dialect, formulas = M.reader, texts = texts, checked = M.checked() }
end

--- How many elements of its memory a tensor reaches over, from its first one on; none where that memory was released.
function M.reach(x)
  if B.numel(x) == 0 then return 0 end
  local last = 0
  for k = 1, B.dim(x) do last = last + (B.size(x, k) - 1) * B.stride(x, k) end
  return math.max(0, math.min(last + 1, B.storage_nbytes(x) / B.itemsize(x) - B.storage_offset(x)))
end

--- What an access outside of a tensor is told by. element: of a block, if it is known.
function M.outside_text(what, name, offset, element, x)
  local shape, reach = {}, M.reach(x)
  for k = 1, B.dim(x) do shape[k] = B.size(x, k) end
  return ("%s %s[%.0f]%s is outside of the tensor %s: %s"):format(what, name, offset,
    element and (", element %d of the block,"):format(element) or "", tile.shape_text(shape),
    reach > 0 and ("its elements reach from 0 to %.0f"):format(reach - 1) or "it has no elements")
end

--- Raises the error of an access outside of its tensor. noted: as printer.fault gets it; nx, ny: of the grid.
function M.outside(prog, noted, sites, values, nx, ny)
  local i, what, place = printer.fault(noted, sites)
  local program = noted[4]
  error(("%s[kernel] %s, program (%d, %d, %d): %s; there must be a mask that is false there"):format(
    place ~= "" and place .. ": " or "", prog.name, program % nx, math.floor(program / nx) % ny,
    math.floor(program / nx / ny), M.outside_text(what, prog.params[i].name, noted[2], nil, values[i])), 0)
end

local LIMIT = 256 * 2 ^ 20 -- bytes of compiled kernels that are kept

local processor
local function machine()
  if not processor then
    local text = toolchain.read("/proc/cpuinfo") or ""
    processor = (text:match("model name[^\n]*") or "") .. (text:match("flags[^\n]*") or "")
  end
  return processor
end

M.machine = machine

--- Runs programs 0 to n - 1 on moth's threads.
function M.launch(n, grain, fn, slots)
  if not C.moth_parallel_for_launch(n, grain, fn, slots) then
    B.ops.empty({ 0 }) -- raises "interrupted"
  end
end

-- Generated programs have their loops as they should be: trying harder takes time alone.
local function effort(cc, quick)
  if not quick then return "-O3" end
  return cc.version:find("clang", 1, true) and "-O2" or "-O2 -ftree-vectorize -fvect-cost-model=dynamic"
end

-- For a level of x86-64, and for another processor.
local marches = { generic = "x86-64-v2", avx2 = "x86-64-v3", arm64 = "-march=armv8-a" }

local function flags(cc, quick)
  local level = B.cpu_level()
  -- Without -mno-mmx, gcc 12 moves integers to SSE by MMX, and leaves x87 (math.ldexp of LuaJIT) to give NaN.
  local march = jit.arch == "x64" and "-mno-mmx -march=" .. (marches[level] or "native") or marches[jit.arch] or ""
  local wide = level == "avx512" and " -mprefer-vector-width=512" or ""
  return "-std=gnu17 " .. effort(cc, quick) .. " " .. march .. wide .. " -ffp-contract=fast \z
    -fno-math-errno -fno-trapping-math -fwrapv -fopenmp-simd -fPIC -shared -w -fvisibility=hidden"
end

local libraries = {} -- path -> library: one that is collected is closed

--- The library of a text, compiled where it was not yet, quick or not; nil and a message where that fails.
function M.library(source, cc, quick)
  local folder = toolchain.folder("kernels", "MOTHINDUCTOR_CACHE_DIR")
  if not folder then return nil, "there is no folder to compile in; set XDG_CACHE_HOME or TMPDIR" end
  local f = flags(cc, quick)
  local code = source:gsub("/%*.-%*/", "") -- the lines that a kernel stands in do not count
  local key = table.concat({ code, f, cc.version, machine(), B.version_string }, "\0")
  local name = B.sha256(key):sub(1, 32) .. ".so"
  local function make(work)
    local c = work .. ".c"
    local file, message = io.open(c, "w")
    if not file then return nil, message end
    file:write(source)
    file:close()
    local command = ("%s %s -o %s %s"):format(toolchain.quoted(cc.path), f, toolchain.quoted(work), toolchain.quoted(c))
    local ran, said, ok = pcall(toolchain.output, command)
    os.remove(c)
    if not ran then error(said, 0) end -- Ctrl-C
    if not ok then return nil, command .. "\n" .. said end
    return true
  end
  for attempt = 1, 2 do
    local path, message = toolchain.keep { folder = folder, name = name, make = make, limit = LIMIT }
    if not path then return nil, message end
    if not libraries[path] then
      local ok, loaded = pcall(ffi.load, path)
      if ok then
        libraries[path] = loaded
      else
        os.remove(path)
        if attempt == 2 then return nil, loaded end
      end
    end
    if libraries[path] then return libraries[path] end
  end
end

-- ---- many programs ----------------------------------------------------------------------------------

local function stripped(text) return (text:gsub("/%*.-%*/", "")) end

-- What programs are printed for: the printer's dialect, what there is already, whether blocks may stay arrays and
-- reductions share loops (tile_plan.prepare).
local here = { dialect = dialect, loaded = {}, stay = true, joins = true }

-- Names end in @, which is replaced by the program's number.
local function printed(k, o)
  plan.prepare(k.prog, o.stay, o.joins)
  local p, body = printer.body { prog = k.prog, dialect = o.dialect, formulas = M.reader, texts = texts,
    checked = k.checked, threads = o.threads and o.threads(k.prog) }
  return p, ("/* %s */\n%s\n"):format((k.text:gsub("%*/", "* /")), o.dialect.functions(p, k.prog, body, "fused@"))
end

-- The text of a file with these programs: the function moth_kernel.
local function file_of(printers, parts, cases)
  return table.concat { dialect.head(texts),
    "#if defined(__clang__)\n#pragma clang fp contract(on)\n#endif\n",
    printer.needs(printers, M.reader), "\n", table.concat(parts, "\n"),
    '\n__attribute__((visibility("default"))) void moth_kernel(MothSlot *a, long begin, long end) {\n',
    "  switch (a[0].i) {\n", table.concat(cases, "\n"), "\n  }\n}\n" }
end

local function case(number)
  return ("  case %d:\n    fused%d(a + 1, begin, end);\n    break;"):format(number, number)
end

--- The C text of programs, as of M.programs, each of which gets a `kernel` with its number, for a file of one's own.
function M.text(list)
  local printers, parts, cases, known = {}, {}, {}, {}
  for _, k in ipairs(list) do
    local p, code = printed(k, here)
    local key = stripped(code)
    if not known[key] then
      local number = #parts + 1
      known[key] = number
      printers[number], parts[number], cases[number] = p, (code:gsub("@", tostring(number))), case(number)
    end
    k.kernel = { number = known[key] }
  end
  return file_of(printers, parts, cases)
end

--- The compiler's flags: flags(toolchain.cc(), quick).
M.flags = flags

--- The texts of programs, { prog, text = a comment, work = elements of one, checked = whether accesses are checked,
-- base = a program that several are equal to, or nil }, and each gets `kernel`, which it shares with equal ones. o:
-- what they are printed for: dialect, stay, joins, threads(prog), loaded (what there is: kept by the caller). Returns
-- for those that there were not yet a table of kernels by their keys, and the lists of printers and texts, by the
-- numbers that the kernels have.
function M.printed(list, o)
  local new, printers, parts = {}, {}, {}
  for _, k in ipairs(list) do
    local base = k.base or k
    if not base.key then
      base.printer, base.code = printed({ prog = base.prog, text = k.text, checked = k.checked }, o)
      base.key = B.sha256(stripped(base.code))
    end
    k.kernel = o.loaded[base.key] or new[base.key]
    if not k.kernel then
      local number = #parts + 1
      k.kernel = { number = number }
      new[base.key] = k.kernel
      printers[number], parts[number] = base.printer, (base.code:gsub("@", tostring(number)))
    end
  end
  return new, printers, parts
end

--- Notes kernels as there, for good. The programs' bases lose their `prog`.
function M.keep(list, new, o)
  for key, kernel in each(new) do o.loaded[key] = kernel end
  for _, k in ipairs(list) do
    if k.base then k.base.prog, k.base.printer, k.base.code = nil, nil, nil end
  end
end

--- Compiles programs, as of M.printed, in one file, but those that there are already: `kernel` of each has `call`, a
-- function of a range of programs, and `number`, which its arguments begin with. Returns the number of new ones; nil
-- and a message where the compiler fails.
function M.programs(list, cc)
  local new, printers, parts = M.printed(list, here)
  if #parts > 0 then
    local cases = {}
    for number = 1, #parts do cases[number] = case(number) end
    local source = file_of(printers, parts, cases)
    if toolchain.logs("output_code") then toolchain.log("output_code", false, source) end
    local lib, message = M.library(source, cc, true)
    if not lib then return nil, message end
    local call = ffi.cast("MothKernelRange", lib.moth_kernel)
    for _, kernel in each(new) do kernel.lib, kernel.call = lib, call end
  end
  M.keep(list, new, here)
  return #parts
end

--- Compiles a program: { run(values, grid), source }; nil where there is no compiler.
function M.compile(prog)
  local cc, checked = toolchain.cc(), M.checked()
  if not cc then return nil end
  local source, sites = M.source(prog)
  if toolchain.logs("output_code") then toolchain.log("output_code", false, source) end
  local lib, message = M.library(source, cc)
  if not lib then check.fail("[kernel] %s: the C compiler failed: %s", prog.name, message) end
  local fn, n = lib.moth_kernel, #prog.params
  local call, slots = ffi.cast("MothKernelRange", fn), Slots(checked and n * 2 + 8 or n + 4)
  local params = prog.params
  local biggest = prog.biggest or 1
  local grain = math.max(1, math.floor(32768 / biggest))

  local function run(values, gx, gy, gz)
    for i = 1, n do
      local p = params[i]
      if p.pointer then
        slots[i - 1].p = B.data_ptr(values[i]) or 0
        if checked then slots[n + 3 + i].i = M.reach(values[i]) end
      elseif p.float then
        slots[i - 1].d = values[i]
      elseif p.integer then
        slots[i - 1].i = values[i]
      end
    end
    slots[n].i, slots[n + 1].i, slots[n + 2].i, slots[n + 3].i = gx, gy, gz, 0
    local out = n * 2 + 4
    if checked then slots[out].i = 0 end
    M.launch(gx * gy * gz, grain, call, slots)
    if checked and slots[out].i ~= 0 then
      local noted = {}
      for i = 1, 4 do noted[i] = tonumber(slots[out + i - 1].i) end
      M.outside(prog, noted, sites, values, gx, gy)
    end
    if slots[n + 3].i ~= 0 then check.fail("[kernel] %s: no memory for the blocks of a program", prog.name) end
  end
  return { run = run, source = source }
end

return M
