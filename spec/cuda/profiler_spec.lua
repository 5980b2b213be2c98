-- What devices do in profiles: by pairs of events around calls, and by CUPTI, whose part a library of our own plays.
local moth = require "moth"
local cjson = require "cjson"
local profiler = moth.profiler
local build = os.getenv("MOTH_BUILD") or "build"
local there = moth.cuda.is_available()
local emulated = os.getenv("MOTH_CUDA") == "emu"

local function read(path)
  local f = assert(io.open(path))
  local text = f:read("*a")
  f:close()
  os.remove(path)
  return text
end

local function write(path, text)
  local f = assert(io.open(path, "w"))
  f:write(text)
  f:close()
end

local function row(list, key)
  for _, r in ipairs(list) do if r.key == key then return r end end
end

describe("profiles of devices", function()
  if not there then return pending("needs CUDA or its emulation: MOTH_CUDA=emu") end

  local x = moth.randn(32, 32, { device = "cuda" })
  local w = moth.randn(32, 32, { device = "cuda", requires_grad = true })
  local function step() x:matmul(w):tanh():sum():backward() end

  it("have the device's time of each call, of what it calls, and of backward #M474 #M476", function()
    local prof = profiler.profile({ profile_memory = true }, function() for _ = 1, 3 do step() end end)
    local list = prof:key_averages()
    local mm, matmul, node = row(list, "moth::mm"), row(list, "moth::matmul"), row(list, "MmBackward0")
    assert.is_true(mm.cuda_time_total > 0 and matmul.cuda_time_total > 0 and node.cuda_time_total > 0)
    assert.is_true(matmul.cuda_time_total <= mm.cuda_time_total)
    assert.equal(0, matmul.self_cuda_time_total)
    assert.is_true(row(list, "moth::tanh").cuda_memory_usage >= 3 * 32 * 32 * 4)
    assert.is_true(row(list, "moth::tanh").cpu_memory_usage < 3 * 32 * 32 * 4)
    assert.is_true(node.cuda_memory_usage >= 3 * 32 * 32 * 4)
    local sum = 0
    for _, r in ipairs(list) do sum = sum + r.self_cuda_time_total end
    assert.is_close(list.cuda_time_total, prof.recording.by_events and sum or sum / 2)
    local text = list:table { sort_by = "cuda_time_total" }
    assert.matches("Self CUDA +Self CUDA %% +CUDA total +CUDA Mem", text)
    assert.matches("CUDA times by ", text)
    local top = prof:top(2)
    assert.is_true(#top == 2 and top[1].self_cuda_time_total >= top[2].self_cuda_time_total)
    local host = profiler.profile({ activities = { "cpu" } }, step)
    assert.equal(0, row(host:key_averages(), "moth::mm").cuda_time_total)
    assert.not_matches("CUDA", tostring(host))
  end)

  it("go to traces as tracks of streams, with arrows from launches #M481", function()
    local prof = profiler.profile(function()
      step()
      moth.cuda.stream(moth.cuda.Stream(), function() x:exp() end)
      moth.cuda.synchronize()
    end)
    local path = os.tmpname()
    prof:export_chrome_trace(path)
    local arrows, kernels, reach, tracks = {}, 0, {}, 0
    for _, e in ipairs(cjson.decode(read(path)).traceEvents) do
      if e.cat == "kernel" then
        kernels = kernels + 1
        if not reach[e.tid] then tracks = tracks + 1 end
        assert.is_true(e.ts >= (reach[e.tid] or 0))
        reach[e.tid] = e.ts + e.dur - 1e-3
      elseif e.cat == "ac2g" then
        arrows[e.ph .. e.id] = e
      end
    end
    assert.is_true(kernels >= 8)
    assert.equal(2, tracks)
    assert.is_true(arrows.s1.ts <= arrows.f1.ts and arrows.s1.pid ~= arrows.f1.pid)
    prof:report(path)
    assert.matches('"label":"cuda:0 stream 2"', read(path), 1, true)
    local kinds = {}
    for _, e in ipairs(prof:events()) do
      if e.device then kinds[e.parent.name] = e.kind end
    end
    assert.equal("kernel", kinds["moth::exp"])
  end)

  it("tell when the device had nothing to do, and what the CPU did then #M488", function()
    local prof = profiler.profile(function()
      step()
      moth.cuda.synchronize()
      local t = os.clock()
      while os.clock() - t < 0.02 do t = t end
      x:exp()
      moth.cuda.synchronize()
    end)
    local gap = prof:gaps()[1]
    assert.equal("moth::exp", gap.before)
    assert.is_true(gap.duration > 15000)
    assert.equal("outside of ops", gap.cpu)
    assert.matches("profiler_spec.lua:", gap.place)
    assert.matches("in gaps", tostring(prof:gaps()))
    assert.is_true(#prof:gaps { device = false, least_us = 15000 } > 0)
  end)

  it("are by CUPTI where it can be opened #M474 #M487", function()
    if not emulated then return end
    local folder = os.tmpname()
    os.remove(folder)
    os.execute("mkdir " .. folder)
    write(folder .. "/cupti.c", [[
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#pragma pack(push, 8)
typedef struct { uint32_t kind, pad, more[2]; uint64_t start, end, completed; uint32_t device, context, stream;
  int32_t grid[3], block[3], shared[2]; uint32_t local[2], correlation; int64_t id; const char *name;
  char rest[100]; } Kernel;
typedef struct { uint32_t kind, of; uint64_t id; uint32_t correlation, reserved; } External;
#pragma pack(pop)
static void (*request)(uint8_t **, size_t *, size_t *);
static void (*complete)(void *, uint32_t, uint8_t *, size_t, size_t);
static int enabled[64], depth, n;
static struct { uint64_t id, start, end; } open[100], done[1000];
static uint64_t now(void) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec; }
int cuptiActivityRegisterCallbacks(void *r, void *c) { request = r; complete = c; return 0; }
int cuptiActivityEnable(int kind) { enabled[kind]++; return kind == 10 && getenv("REFUSES") ? 35 : 0; }
int cuptiActivityDisable(int kind) { enabled[kind]--; return 0; }
int cuptiGetTimestamp(uint64_t *t) { *t = now(); return 0; }
int cuptiActivityPushExternalCorrelationId(int kind, uint64_t id) {
  open[depth].id = id; open[depth++].start = now(); return 0; }
int cuptiActivityPopExternalCorrelationId(int kind, uint64_t *last) {
  if (!depth) return 1;
  depth--;
  done[n].id = *last = open[depth].id; done[n].start = open[depth].start; done[n++].end = now();
  return 0; }
int cuptiActivityFlushAll(uint32_t flag) {
  uint8_t *b; size_t size, most;
  for (int i = 0; i < n && enabled[10] && enabled[39] && enabled[5]; i++) {
    request(&b, &size, &most);
    *(Kernel *)b = (Kernel){.kind = 10, .start = done[i].start, .end = done[i].end, .stream = 7, .correlation = i + 1,
      .name = i % 2 ? "_Z4evenPfi" : "_Z3oddILi3EEvPKf"};
    *(External *)(b + sizeof(Kernel)) = (External){39, 3, done[i].id, i + 1, 0};
    complete(0, 0, b, size, sizeof(Kernel) + sizeof(External));
  }
  n = 0;
  return 0; }
int cuptiActivityGetNextRecord(uint8_t *b, size_t valid, void **record) {
  uint8_t *at = *record ? (uint8_t *)*record + (*(uint32_t *)*record == 10 ? sizeof(Kernel) : sizeof(External)) : b;
  if (at >= b + valid) return 12;
  *record = at;
  return 0; }
]])
    write(folder .. "/try.lua", [[
local moth = require "moth"
local x = moth.randn(32, 32, { device = "cuda" })
for _ = 1, 2 do
  local prof = moth.profiler.profile({ record_shapes = true }, function() x:matmul(x):tanh() end)
  local by = {}
  for _, e in ipairs(prof:events()) do if e.device then by[e.parent.name] = e.name .. " " .. e.stream end end
  print(by["moth::mm"], by["moth::matmul"], by["moth::tanh"], prof.recording.by_events)
  for _, r in ipairs(prof:top(2)) do io.write(r.key, " ", r.count, "; ") end
end]])
    assert.equal(0, os.execute(("cc -shared -fPIC -w -o %s/libcupti.so.13 %s/cupti.c"):format(folder, folder)))
    local function try(env)
      local pipe = io.popen(("%s MOTH_CUDA_LIB=%s %s/moth %s/try.lua 2>&1"):format(env, folder, build, folder))
      local text = pipe:read("*a")
      pipe:close()
      return text
    end
    local once = "void odd<3>(float const*) 7\teven(float*, int) 7\tvoid odd<3>(float const*) 7\tnil\n"
    local text = try ""
    assert.equal(2, select(2, text:gsub(once:gsub("%p", "%%%0"), "")), text)
    assert.matches("even(float*, int) 1; ", text, 1, true)
    assert.matches("moth::mm 7", (try "REFUSES=1":gsub("(moth::mm) %d+", "%1 7")), 1, true)
    assert.matches("CUPTI refuses activity 10: error 35 (the driver lets only root", try "REFUSES=1", 1, true)
    os.execute("rm -r " .. folder)
  end)
end)
