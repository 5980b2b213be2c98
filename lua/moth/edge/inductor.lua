--- moth.inductor: exported programs as shared libraries that C calls without Lua.
--
--     local ep = moth.export(model:eval(), { x })
--     moth.aot_compile(ep, { out = "model.so" })          -- model.so, and model.h beside it
--
-- What can be computed together is C code that is generated for the program, as in moth.compile; other calls are
-- those of moth's kernels. Without `target` the library is for this processor and stands on libmoth.so: the bits of
-- moth.compile.
-- docs/deploy.md has an example in C.
local B = require "moth_lua"
local export = require "moth.export"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local system = require "moth.utils.system"
local toolchain = require "moth.utils.toolchain"

local M = {}

-- The structs of src/edge/fused.h.
local DECLARATIONS = [[
#include <stddef.h>
#include <stdint.h>
typedef struct { int dtype, ndim; const int64_t *shape; } Value;
typedef struct { int64_t n, grain; const uint64_t *slots; } Launch;
typedef struct {
  unsigned nresults, noperands, ntemporaries, nlaunches, nslots;
  const Value *results;
  const int64_t *temporaries;
  const int *at;
  const Launch *launches;
} Kernel;
typedef struct {
  int version;
  unsigned count;
  const Kernel *kernels;
  void (*run)(MothSlot *slots, long begin, long end);
} Fused;
typedef struct MothModel MothModel;
int moth_edge_load_fused(const void *bytes, size_t n, const Fused *fused, MothModel **m);
int moth_edge_run(MothModel *m, const void *const *in, const int64_t *dims, void *const *out, void *arena);
]]

local function list_of(ctype, name, list)
  return ("static const %s %s[] = {%s};\n"):format(ctype, name, #list > 0 and table.concat(list, ", ") or "0")
end

local function numbers(list)
  local out = {}
  for i, n in ipairs(list) do out[i] = ("%d"):format(n) end
  return out
end

local function words(bytes)
  local out = {}
  for i = 1, #bytes, 8 do
    local a, b, c, d, e, f, g, h = bytes:byte(i, i + 7)
    out[#out + 1] = ("0x%02x%02x%02x%02x%02x%02x%02x%02xu"):format(h, g, f, e, d, c, b, a)
  end
  return out
end

-- The tables of the kernels, in the order of the file.
local function tables(list, low)
  local capi = require "moth.capi"
  local t, rows = {}, {}
  for _, call in ipairs(list) do
    local k = call.kernel
    if k then
      local n = #rows + 1
      local values, launches = {}, {}
      for i, id in ipairs(k.results) do
        local v = low.values[id]
        t[#t + 1] = list_of("int64_t", ("shape_%d_%d"):format(n, i), numbers(v.shape))
        values[i] = ("{%d, %d, shape_%d_%d}"):format(tonumber(capi.dtype(v.dtype)), #v.shape, n, i)
      end
      for i, l in ipairs(k.launches) do
        t[#t + 1] = list_of("uint64_t", ("slots_%d_%d"):format(n, i), words(l.slots))
        launches[i] = ("{%d, %d, slots_%d_%d}"):format(l.n, l.grain, n, i)
      end
      t[#t + 1] = list_of("Value", "results_" .. n, values)
      t[#t + 1] = list_of("int64_t", "temporaries_" .. n, numbers(k.temporaries))
      t[#t + 1] = list_of("int", "at_" .. n, numbers(k.launches[1].at))
      t[#t + 1] = list_of("Launch", "launches_" .. n, launches)
      rows[n] = ("{%d, %d, %d, %d, %d, results_%d, temporaries_%d, at_%d, launches_%d}"):format(#k.results, #k.operands,
        #k.temporaries, #k.launches, #k.launches[1].slots / 8, n, n, n, n)
    end
  end
  t[#t + 1] = ("static const Kernel kernels[] = {%s};\nstatic const Fused fused = {1, %d, kernels, moth_kernel};\n")
    :format(#rows > 0 and table.concat(rows, ",\n  ") or "{0}", #rows)
  return table.concat(t)
end

local function interface(prefix, file)
  return DECLARATIONS .. "%s" .. ([[
__asm__(".section .rodata\n.balign 64\nmoth_model_begin:\n.incbin \"%s\"\nmoth_model_end:\n.byte 0\n.previous\n");
extern const char moth_model_begin[] __attribute__((visibility("hidden")));
extern const char moth_model_end[] __attribute__((visibility("hidden")));
__attribute__((visibility("default"))) int %s_load(MothModel **m) {
  return moth_edge_load_fused(moth_model_begin, (size_t)(moth_model_end - moth_model_begin), &fused, m);
}
__attribute__((visibility("default"))) int %s_run(MothModel *m, const void *const *in, const int64_t *dims,
                                                  void *const *out, void *arena) {
  return moth_edge_run(m, in, dims, out, arena);
}
]]):format(file:gsub('[\\"]', "\\%0"), prefix, prefix)
end

local HEADER = [[
#include <stddef.h>
#include <stdint.h>
#ifndef MOTH_EDGE_H
#define MOTH_EDGE_H
#ifdef __cplusplus
extern "C" {
#endif
%s
#ifdef __cplusplus
}
#endif
#endif]]

local function header(prefix, ep_text)
  return ([[
/* Written by moth.aot_compile. %s
 *
 *     MothModel *m;
 *     if (%s_load(&m)) puts(moth_edge_error());
 *     void *arena = malloc(moth_edge_arena(m, NULL));
 *     %s_run(m, in, NULL, out, arena);
 *
 * Functions are those of moth_edge.h, which follow. */
%s
#ifdef __cplusplus
extern "C" {
#endif
int %s_load(MothModel **m);
int %s_run(MothModel *m, const void *const *in, const int64_t *dims, void *const *out, void *arena);
#ifdef __cplusplus
}
#endif
]]):format(ep_text, prefix, prefix, HEADER:format(require "moth.edge_cdef"), prefix, prefix)
end

local function write(path, text)
  local f, message = io.open(path, "wb")
  if not f then check.fail("[aot_compile] %s", message) end
  f:write(text)
  f:close()
end

-- The folder that libmoth.so was loaded from.
local function library_folder()
  for line in io.lines("/proc/self/maps") do
    local folder = line:match("%s(/.*)/libmoth%.so")
    if folder then return folder end
  end
end

-- What compiles and links: for this machine on libmoth.so, for another with its libmoth_edge.a inside.
local function commands(target, library, work, out)
  local quoted = toolchain.quoted
  if not target then
    local cc = toolchain.cc()
    if not cc then check.fail("[aot_compile] there is no C compiler; MOTH_CC names one") end
    local native = require "moth.kernel.native"
    local folder = library_folder() or "."
    return ("%s %s -fvisibility=hidden -o %s %s -L%s -Wl,-rpath,%s -l:%s -lm"):format(quoted(cc.path),
      native.flags(cc, true), quoted(out), quoted(work), quoted(folder), quoted(folder), B.soname)
  end
  local cc = system.getenv("MOTH_CC") or target .. "-gcc"
  return ("%s -std=gnu17 -O2 -ftree-vectorize -ffp-contract=fast -fno-math-errno -fno-trapping-math -fwrapv -fPIC -w \z
    -fopenmp-simd -fvisibility=hidden -shared -o %s %s %s -Wl,--gc-sections -lm"):format(quoted(cc), quoted(out),
    quoted(work), quoted(library))
end

--- Compiles an exported program to a shared library, and writes its header beside it. out: its path, "….so". name: what
-- its two functions begin with (moth_aoti_load, moth_aoti_run). target: a processor and system, "aarch64-linux-gnu",
-- whose compiler is target .. "-gcc", or $MOTH_CC; library: the libmoth_edge.a for it (`make edge CROSS=…`). Sizes are
-- those of the example: programs with dynamic dimensions are errors. output_names as of moth.edge.export. Returns the
-- path.
--
-- The library has the weights in it. It needs libmoth.so where it was found; with `target` it needs nothing but libm.
M.aot_compile = signature("inductor.aot_compile(any program, *, path out, string name='moth_aoti', string target?, \z
    path library?, table output_names?)", function(ep, out, name, target, library, names)
  if not export.is_exported(ep) then
    check.fail("[aot_compile] expected an exported program, got %s\nHINT: moth.export(model:eval(), { x }) makes one",
      class.name(ep))
  end
  if next(ep.program.dims) then
    check.fail("[aot_compile] the program has dynamic dimensions, and code is generated for fixed sizes: export it "
      .. "without dynamic_shapes, once for each size; moth.edge.export keeps them dynamic")
  end
  if not name:find("^[%a_][%w_]*$") then check.fail("[aot_compile] name: expected a C name, got '%s'", name) end
  if out == "" or system.list(out) then
    check.fail("[aot_compile] out: expected the path of a library, such as 'model.so', got %s",
      out == "" and "an empty text" or "the folder " .. out)
  end
  if target and not library then
    check.fail("[aot_compile] target: library must name the libmoth_edge.a of that machine\nHINT: make edge CROSS=%s-",
      target)
  end
  local made, text, low, list = require("moth.edge.fused").lower(ep, names)
  local work = out .. ".build"
  require("moth.edge.file").write(made, work .. ".mte")
  write(work .. ".c", (text .. interface(name, work .. ".mte"):gsub("%%s", function() return tables(list, low) end)))
  local command = commands(target, library, work .. ".c", out)
  local said, ok = toolchain.output(command)
  os.remove(work .. ".mte")
  if not ok then check.fail("[aot_compile] the C compiler failed: %s\n%s", command, said) end
  os.remove(work .. ".c")
  write((out:gsub("%.%w+$", "")) .. ".h", header(name, ("%d inputs, %d outputs, %d calls."):format(
    #ep.program.inputs, #made.outputs, #made.calls)))
  return out
end)

return M
