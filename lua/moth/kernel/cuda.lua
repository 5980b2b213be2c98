--- Programs of the tile IR on CUDA: printed as CUDA C++, compiled by NVRTC (moth.cuda.compile).
local check = require "moth.utils.check"
local dialect = require "moth.codegen.tile_cuda"
local native = require "moth.kernel.native"
local plan = require "moth.codegen.tile_plan"
local printer = require "moth.codegen.tile_print"
local texts = require "moth.codegen.texts"
local toolchain = require "moth.utils.toolchain"

local M = {}

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
  if shared > 232448 then
    check.fail("[kernel] %s: a program's blocks take %d bytes of shared memory, no GPU has more than 232448; use \z
      smaller blocks", prog.name, shared)
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

return M
