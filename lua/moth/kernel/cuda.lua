--- Programs of the tile IR on CUDA: printed as CUDA C++, compiled by NVRTC (moth.cuda.compile).
local check = require "moth.utils.check"
local dialect = require "moth.codegen.tile_cuda"
local each = require "moth.each"
local native = require "moth.kernel.native"
local plan = require "moth.codegen.tile_plan"
local printer = require "moth.codegen.tile_print"
local texts = require "moth.codegen.texts"
local toolchain = require "moth.utils.toolchain"

local M = {}

local SHARED = 232448 -- bytes: no GPU has more for a program
local SLOTS = 500 -- parameters of a kernel (MOTH_PLAN_PARAMETERS of src/graph/plan_steps.h)

-- Threads of a program: as many as its largest block can use, from one warp to eight.
local function threads_of(prog, warps)
  if warps then
    local n = 1
    while n < warps do n = n * 2 end
    return n * 32
  end
  local n = 32
  while n < 256 and n < prog.biggest do n = n * 2 end
  return n
end

--- The CUDA C++ of a program; the bytes of shared memory; the threads; the places of its accesses where these are
-- checked.
function M.source(prog, options)
  plan.prepare(prog)
  local o = { prog = prog, dialect = dialect, formulas = native.reader, texts = texts, checked = native.checked(),
    threads = threads_of(prog, options and options.num_warps) }
  local text, sites = printer.print(o)
  return text, o.shared, o.threads, o.checked and sites
end

--- Compiles a program: { run(values, grid), source }.
function M.compile(prog, options)
  local source, shared, threads, sites = M.source(prog, options)
  if toolchain.logs("output_code") then toolchain.log("output_code", false, source) end
  if shared > SHARED then
    check.fail("[kernel] %s: a program's blocks take %d bytes of shared memory, no GPU has more than %d; use \z
      smaller blocks", prog.name, shared, SHARED)
  end
  local moth = require "moth"
  local kernel = moth.cuda.compile(source, "moth_kernel")
  local params = prog.params

  local function run(values, gx, gy, gz)
    local total = gx * gy * gz
    if total > 2 ^ 31 - 1 then
      check.fail("[kernel] %s: a grid of %.0f programs; CUDA has 2147483647 at most", prog.name, total)
    end
    local args, n = {}, 0
    for i, p in ipairs(params) do
      if p.pointer or p.float or p.integer then
        n = n + 1
        args[n] = values[i]
      end
    end
    args[n + 1], args[n + 2], args[n + 3] = gx, gy, gz
    n = n + 3
    local out
    for i, p in ipairs(sites and params or {}) do
      if p.pointer then
        n = n + 1
        args[n] = native.reach(values[i])
      end
    end
    if sites then
      n, out = n + 1, moth.zeros(4, { dtype = moth.int64, device = "cuda:" .. moth.cuda.current_device() })
      args[n] = out
    end
    kernel:launch({ total }, { threads }, shared, unpack(args, 1, n))
    if sites and out:item(1) ~= 0 then native.outside(prog, out:tolist(), sites, values, gx, gy) end
  end
  return { run = run, source = source }
end

-- ---- many programs ----------------------------------------------------------------------------------

local loaded = {} -- architecture -> hash of a program's text -> { program, number, threads, shared }

--- Compiles programs, as of native.printed, in one file for a device (its index), but those that there are already:
-- `kernel` of each has program (of moth_lua.cuda), number, threads, shared. Returns the number of new ones; nil and a
-- message where that fails.
function M.programs(list, device)
  local compile = require "moth.cuda.program"
  local o = { dialect = dialect, threads = function(prog) return threads_of(prog, prog.warps) end }
  local ok, arch = pcall(compile.architecture, device)
  if not ok then return nil, arch end
  for _, k in ipairs(list) do
    local slots = k.checked and #k.args * 2 + 5 or #k.args + 4 -- moth.compile.runtime
    if slots > SLOTS then return nil, ("a kernel of %d parameters"):format(slots) end
  end
  loaded[arch] = loaded[arch] or {}
  o.loaded = loaded[arch]
  local new, printers, parts = native.printed(list, o)
  if #parts > 0 then
    local names = {}
    for number, p in ipairs(printers) do
      names[number] = "fused" .. number
      if (p.shared or 0) > SHARED then return nil, ("%d bytes of shared memory"):format(p.shared) end
    end
    local source = table.concat({ dialect.head(texts), printer.needs(printers, native.reader), unpack(parts) }, "\n")
    if toolchain.logs("output_code") then toolchain.log("output_code", false, source) end
    local made, program = pcall(compile.new, device, source, names)
    if not made then
      if tostring(program):find("interrupted", 1, true) then error(program, 0) end
      return nil, program
    end
    for _, kernel in each(new) do
      local p = printers[kernel.number]
      kernel.program, kernel.threads, kernel.shared = program, p.threads, p.shared or 0
    end
  end
  native.keep(list, new, o)
  return #parts
end

return M
