-- Marks for NVIDIA's tools, seen by a tool of our own: a library with the entry that nsys and ncu have.
local moth = require "moth"
local child = require "child"

local tool = [[
#include <stdint.h>
#include <stddef.h>
#include <stdio.h>
typedef void (*fn)(void);
struct callbacks { size_t size; int (*functions)(int module, fn ***table, unsigned *size); };
static int depth;
static int push(const char *s) { printf("%*spush %s\n", 2 * depth, "", s); return depth++; }
static int pop(void) { depth--; printf("%*spop\n", 2 * depth, ""); return depth; }
static void mark(const char *s) { printf("%*smark %s\n", 2 * depth, "", s); }
int InitializeInjectionNvtx2(const void *(*get)(uint32_t)) {
  const struct callbacks *c = get(1);
  fn **table;
  unsigned n;
  if (!c || c->size < sizeof *c || !get(3) || get(99)) return 0;
  for (int module = 1; module <= 6; module++) {
    if (!c->functions(module, &table, &n) || n < 7) return 0;
    for (unsigned i = 1; i < n; i++) *table[i] = (fn)mark; /* tools set all that there is */
  }
  if (c->functions(9, &table, &n) || !c->functions(1, &table, &n) || n != 16) return 0;
  *table[9] = (fn)push; *table[11] = (fn)pop; *table[2] = (fn)mark;
  setbuf(stdout, NULL);
  return 1;
}]]

local function run(env, code)
  return (child("local moth = require 'moth' io.stdout:setvbuf 'no'\n" .. code, { env = env }))
end

describe("NVTX", function()
  it("ranges and marks go to the tool that asks for them #M491", function()
    local path = os.tmpname()
    local f = assert(io.open(path .. ".c", "w"))
    f:write(tool)
    f:close()
    assert.equal(0, os.execute(("cc -shared -fPIC -w -o %s.so %s.c"):format(path, path)))
    local program = [[
      local x = moth.ones(2)
      moth.profiler.record_function("outer", function()
        moth.profiler.record_function("inner", function() return x + 1 end)
        pcall(moth.profiler.record_function, "fails", function() error "no" end)
      end)
      moth.cuda.nvtx.range("by name", function() moth.cuda.nvtx.mark "here" end)
      print(moth.cuda.nvtx.why())]]
    local env = "NVTX_INJECTION64_PATH=" .. path .. ".so "
    assert.equal("push outer\n  push inner\n  pop\n  push fails\n  pop\npop\npush by name\n  mark here\npop\nnil\n",
      run(env .. "MOTH_NVTX=1", program))
    assert.equal("push by name\n  mark here\npop\nnil\n", run(env, program))
    assert.matches("^NVTX: [^\n]+no/such[^\n]*\n$", run("MOTH_NVTX=1 NVTX_INJECTION64_PATH=/no/such.so", program))
    os.execute(("rm %s %s.c %s.so"):format(path, path, path))
  end)

  it("marks do nothing where no tool runs #quick", function()
    local nvtx = moth.cuda.nvtx
    assert.is_false(nvtx.range_push "a")
    assert.is_false(nvtx.range_pop())
    assert.equal(3, nvtx.range("c", function() return 3 end))
    assert.matches("NVTX_INJECTION64_PATH", nvtx.why())
  end)
end)
