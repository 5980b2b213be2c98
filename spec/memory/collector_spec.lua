-- When garbage is collected (src/lua/collect.c): counts of cycles and bytes, no times.
local ffi = require "ffi"
local moth = require "moth"
local memory = moth.memory

ffi.cdef [[
typedef struct lua_State lua_State;
lua_State *luaL_newstate(void); void luaL_openlibs(lua_State *L); void lua_close(lua_State *L);
int luaL_loadstring(lua_State *L, const char *text); int lua_pcall(lua_State *L, int n, int results, int handler);
const char *lua_tolstring(lua_State *L, int at, size_t *n); void lua_settop(lua_State *L, int at);
]]

local MB = 2 ^ 20
-- The growth at which a cycle begins in any case, and a half more for its slices; live is what a program holds.
local function allowed(live)
  return 1.5 * math.max(64 * MB, live / 2, 12 * 1024 * collectgarbage "count") + 64 * MB
end

-- Makes and drops n tensors of 16 MB, whose pages are not touched; the most live bytes above the start.
local function drop(n, make)
  local start, most = memory.stats().live, 0
  for i = 1, n do
    if make then make(i) else moth.empty(4 * MB) end
    if i % 4 == 0 then most = math.max(most, memory.stats().live - start) end
  end
  return most
end

-- What f adds to the counts.
local function counted(f)
  local before = memory.stats()
  f()
  local after = memory.stats()
  return after.collections - before.collections, after.full_collections - before.full_collections
end

describe("the collector", function()
  before_each(function()
    collectgarbage()
    collectgarbage()
  end)

  it("returns dropped tensors beside a large Lua heap, without a full collection", function()
    local keep = {}
    for i = 1, 100000 do keep[i] = { i } end
    local cycles, full = counted(function()
      local most = drop(500)
      assert.is_true(most < allowed(0), most / MB .. " MB")
    end)
    assert.is_true(cycles >= 1, cycles)
    assert.equal(0, full)
    assert.equal(100000, #keep)
    keep = nil -- luacheck: ignore
    collectgarbage()
    local before = memory.stats().live
    collectgarbage()
    assert.is_true(before - memory.stats().live < MB)
  end)

  it("goes on after collectgarbage, in any state of a cycle, and when that is stopped", function()
    local keep = {}
    for i = 1, 100000 do keep[i] = { i } end
    local _, full = counted(function()
      for _, how in ipairs { "collect", "step", "stop", "restart" } do
        local most = drop(200, function(i)
          if i % 50 == 0 then collectgarbage(how) end
          moth.empty(4 * MB)
        end)
        assert.is_true(most < allowed(0), how .. most / MB)
      end
    end)
    collectgarbage "restart"
    assert.equal(0, full)
    assert.equal(100000, #keep)
  end)

  it("keeps what is held, through closures, coroutines, graphs and finalizers that make tensors", function()
    local w = moth.ones(3, { requires_grad = true })
    local held, made = {}, 0
    local co = coroutine.wrap(function()
      for i = 1, 300 do
        local x = moth.full({ 1000 }, i)
        if i % 25 == 0 then
          held[#held + 1] = { i, x, function() return x end, (w * i):sum() }
          local p = newproxy(true)
          getmetatable(p).__gc = function()
            made = made + moth.ones(2):sum():item()
            moth.empty(4 * MB)
          end
        end
        moth.empty(4 * MB)
        coroutine.yield()
      end
      return true
    end)
    local most = drop(300, co)
    assert.is_true(most < allowed(0), most / MB)
    for _, h in ipairs(held) do
      assert.equal(h[1] * 1000, h[2]:sum():item())
      assert.equal(h[1], h[3]()[1]:item())
      h[4]:backward()
    end
    assert.equal(25 * 12 * 13 / 2, w.grad[1]:item())
    collectgarbage()
    assert.equal(24, made)
  end)

  it("goes on after errors in finalizers", function()
    local errors = 0
    local most = drop(300, function(i)
      if i % 20 == 0 then
        local p = newproxy(true)
        getmetatable(p).__gc = function() error("of a finalizer", 0) end
      end
      local ok, err = pcall(moth.empty, 4 * MB)
      if not ok then
        errors = errors + 1
        assert.equal("of a finalizer", err)
      end
    end)
    for _ = 1, 40 do pcall(collectgarbage) end
    assert.is_true(errors > 0)
    assert.is_true(most < allowed(0), most / MB)
  end)

  it("collects fully after the growth that the program has set, and before an allocation fails", function()
    local was = memory.set_gc_pressure(40 * MB)
    local cycles, full = counted(function() drop(30) end)
    assert.equal(40 * MB, memory.set_gc_pressure(was))
    assert.equal(64 * MB, was)
    assert.is_true(cycles + full >= 8, cycles + full)
    collectgarbage "stop"
    collectgarbage()
    memory.set_limit(memory.stats().live + 100 * MB)
    local ok, err = pcall(drop, 60)
    memory.set_limit(false)
    collectgarbage "restart"
    assert.is_true(ok, err)
  end)

  it("serves several Lua states of a thread, closed in the middle of a cycle", function()
    local C = ffi.C
    local run = [[
      package.path, package.cpath = %q, %q
      local moth, keep = require "moth", {}
      for i = 1, 100000 do keep[i] = { i } end
      local start, most = moth.memory.stats().live, 0
      for i = 1, %d do
        moth.empty(4 * 2 ^ 20)
        most = math.max(most, moth.memory.stats().live - start)
      end
      return tostring(most)]]
    for n = 200, 202 do
      local L = C.luaL_newstate()
      C.luaL_openlibs(L)
      local failed = C.luaL_loadstring(L, run:format(package.path, package.cpath, n)) ~= 0
        or C.lua_pcall(L, 0, 1, 0) ~= 0
      local text = ffi.string(C.lua_tolstring(L, -1, nil))
      C.lua_close(L)
      assert.is_false(failed, text)
      assert.is_true(tonumber(text) < 1024 * MB, text)
      local most = drop(100)
      assert.is_true(most < allowed(0), most / MB)
    end
  end)

  it("returns cached blocks that are not used, those for longest, above what is to be kept", function()
    local B = require "moth_lua"
    local function cached() return memory.stats().cached / MB end
    local function fill(n)
      local list = {}
      for i = 1, n do list[i] = moth.empty(4 * MB) end
      for i = 1, n do list[i]:free() end
    end
    memory.empty_cache()
    fill(16)
    B.trim_cache(0) -- from here on
    assert.is_true(cached() >= 256)
    fill(12)
    B.trim_cache(0) -- four were not used
    assert.is_true(cached() >= 224 and cached() < 240, cached())
    fill(14)
    B.trim_cache(0)
    assert.is_true(cached() >= 224, cached())
    B.trim_cache(192 * MB)
    B.trim_cache(192 * MB)
    assert.is_true(cached() >= 192 and cached() < 208, cached())
    for _ = 1, 5 do B.trim_cache(0) end
    assert.is_true(cached() < 16, cached())
    fill(2)
    memory.empty_cache()
    B.trim_cache(0)
    assert.equal(1, moth.ones(4 * MB)[1]:item())
  end)

  it("cuts or returns blocks of sizes that do not come again", function()
    local B = require "moth_lua"
    collectgarbage()
    collectgarbage()
    memory.empty_cache()
    for _ = 1, 24 do B.trim_cache(0) end -- what was in use before is forgotten
    local before = memory.stats().live
    for round = 1, 3 do
      for k = 1, 40 do
        local x = moth.ones(k * 0.25 * MB + round)
        assert.equal(1, x:amin():item())
        x:free()
      end
    end
    local cached = memory.stats().cached -- of 280 MB
    assert.is_true(cached < before / 2 + 120 * MB, ("%d of %d"):format(cached / MB, before / MB))
    memory.empty_cache()
  end)
end)
