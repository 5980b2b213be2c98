-- The caching allocator of device memory.
local moth = require "moth"
local fails = require "fails"
local cuda = moth.cuda
local MiB = 2 ^ 20

local function there() return cuda.is_available() or pending(cuda.why()) end
local function bytes(n, device) return moth.empty({ n }, { dtype = moth.uint8, device = device or "cuda" }) end
local function stat(name, what, device) return cuda.memory_stats(device)[name .. ".all." .. (what or "current")] end
local function clean()
  collectgarbage()
  collectgarbage()
  cuda.synchronize()
  cuda.empty_cache()
end

describe("the allocator of CUDA memory", function()
  before_each(function() if cuda.is_available() then clean() end end)

  it("rounds to 512 bytes and takes segments of 2 and 20 MiB, or as large as is asked for", function()
    if not there() then return end
    local function grown(n)
      clean()
      local reserved, allocated = stat("reserved_bytes"), stat("allocated_bytes")
      local x = bytes(n)
      local a, r = stat("allocated_bytes") - allocated, stat("reserved_bytes") - reserved
      x:free()
      return a, r
    end
    assert.same({ 512, 2 * MiB }, { grown(1) })
    assert.same({ 1024, 2 * MiB }, { grown(513) })
    assert.same({ MiB, 2 * MiB }, { grown(MiB) })
    assert.same({ MiB + 512, 20 * MiB }, { grown(MiB + 1) })
    assert.same({ 10 * MiB - 512, 20 * MiB }, { grown(10 * MiB - 1023) })
    assert.same({ 10 * MiB, 10 * MiB }, { grown(10 * MiB) })
    assert.same({ 12 * MiB, 12 * MiB }, { grown(11 * MiB + 1) }) -- the rest of 2 MiB is too small for a block
    assert.same({ 512, 2 * MiB }, { grown(0) }) -- an empty tensor has an address, too
  end)

  it("takes the smallest free block that is large enough, splits it and joins neighbours", function()
    if not there() then return end
    local a, gap, b = bytes(4096), bytes(512), bytes(1024)
    local behind = bytes(512)
    local pa, pb = a:data_ptr(), b:data_ptr()
    assert.equal(pa + 4096, gap:data_ptr())
    a:free()
    b:free()
    local c = bytes(1000)
    assert.equal(pb, c:data_ptr()) -- the smallest block that fits
    local d = bytes(1024)
    assert.equal(pa, d:data_ptr())
    local e = bytes(3072) -- the rest of a
    assert.equal(pa + 1024, e:data_ptr())
    d:free()
    gap:free()
    e:free() -- merges with both neighbours
    assert.equal(pa, bytes(4096 + 512):data_ptr())
    behind:free()
    c:free()
    clean()
  end)

  it("keeps its figures and its blocks in order over random calls", function()
    if not there() then return end
    local seed = tonumber(os.getenv("MOTH_SEED")) or 7
    local function random(n)
      seed = (seed * 1103515245 + 12345) % 2 ^ 31
      return math.floor(seed / 65536) % n + 1
    end
    local streams = { cuda.default_stream(), cuda.Stream(), cuda.Stream() }
    local before = stat("allocated_bytes")
    local live, sizes = {}, { 1, 511, 512, 513, 5000, 70000, MiB, MiB + 1, 3 * MiB, 9 * MiB, 11 * MiB }
    for step = 1, 600 do
      if #live > 0 and (random(2) == 1 or #live > 12) then
        local x = table.remove(live, random(#live))
        if random(4) == 1 then x:record_stream(streams[random(3)]) end
        x:free()
      else
        live[#live + 1] = cuda.stream(streams[random(3)], bytes, sizes[random(#sizes)])
      end
      if step % 50 == 0 then
        local sum, reserved = 0, 0
        for _, segment in ipairs(cuda.memory_snapshot()) do
          local at, free_before = segment.address, false
          reserved = reserved + segment.total_size
          for _, block in ipairs(segment.blocks) do
            assert.equal(at, block.address)
            local free = block.state == "inactive"
            assert.is_false(free and free_before, "two free neighbours")
            at, free_before = at + block.size, free
            if block.state == "active_allocated" then sum = sum + block.size end
          end
          assert.equal(segment.address + segment.total_size, at)
        end
        assert.equal(stat("allocated_bytes"), sum)
        assert.equal(stat("reserved_bytes"), reserved)
      end
    end
    for _, x in ipairs(live) do x:free() end
    clean()
    assert.equal(before, stat("allocated_bytes"))
    assert.equal(stat("allocated_bytes"), stat("active_bytes"))
    assert.equal(stat("allocation", "allocated") - stat("allocation", "freed"), stat("allocation"))
  end)

  it("hands a block out again at once on its stream, not on another #M345", function()
    if not there() then return end
    local other = cuda.Stream()
    local x = bytes(3000)
    local p = x:data_ptr()
    x:free()
    local y = cuda.stream(other, bytes, 3000)
    assert.is_true(y:data_ptr() ~= p)
    assert.equal(p, bytes(3000):data_ptr())
  end)

  it("keeps a block back that another stream uses, until that is done #M345", function()
    if not there() then return end
    local other = cuda.Stream()
    local x = bytes(3000)
    local p = x:data_ptr()
    local y = cuda.stream(other, function() return x + 1 end)
    x:record_stream(other)
    local active = stat("active_bytes")
    x:free()
    assert.is_true(stat("active_bytes") <= active)
    other:synchronize()
    local z = bytes(3000)
    assert.equal(p, z:data_ptr()) -- the event has completed, which this allocation notices
    y:free()
    assert.has_error(function() moth.ones(2):record_stream(other) end)
  end)

  it("says what is there and what is missing when memory is out #M344", function()
    if not there() then return end
    local total = cuda.get_device_properties().total_memory
    cuda.set_per_process_memory_fraction(64 * MiB / total)
    local kept = bytes(8 * MiB)
    local ooms = cuda.memory_stats().num_ooms
    local ok, message = pcall(bytes, 100 * MiB)
    cuda.set_per_process_memory_fraction(1)
    assert.is_false(ok)
    assert.matches("%[empty%] CUDA out of memory. Tried to allocate 100.00 MiB on cuda:0 %([%d.]+ %a+ total, "
      .. "64.00 MiB allowed to this process, [%d.]+ %a+ free, [%d.]+ %a+ allocated in %d+ tensors, [%d.]+ %a+ "
      .. "reserved, %d+ retries%); HINT: %a[%a ]+", message)
    assert.equal(ooms + 1, cuda.memory_stats().num_ooms) -- each error once
    kept:free()
    assert.equal(8 * MiB, bytes(8 * MiB):numel()) -- the process goes on
    fails("out of memory", bytes, 2 ^ 52)
    assert.equal(ooms + 2, cuda.memory_stats().num_ooms)
    cuda.set_memory_fraction(0.01) -- the row's own words: after flushing the cache and one retry
    ok, message = pcall(bytes, math.ceil(total * 0.02))
    cuda.set_memory_fraction(1)
    assert.is_false(ok)
    assert.matches("CUDA out of memory. Tried to allocate .- %(.- total, .- allocated .- reserved", message)
  end)

  it("flushes the cache and tries again", function()
    if not there() then return end
    local total = cuda.get_device_properties().total_memory
    cuda.set_per_process_memory_fraction(64 * MiB / total)
    local retries = cuda.memory_stats().num_alloc_retries
    local a, b = bytes(24 * MiB), bytes(20 * MiB)
    a:free()
    b:free()
    local c = bytes(50 * MiB) -- none of the two cached blocks is large enough
    cuda.set_per_process_memory_fraction(1)
    assert.equal(retries + 1, cuda.memory_stats().num_alloc_retries)
    c:free()
  end)

  it("waits for other streams before it gives up", function()
    if not there() then return end
    local total = cuda.get_device_properties().total_memory
    local other = cuda.Stream()
    cuda.set_per_process_memory_fraction(64 * MiB / total)
    local a = bytes(40 * MiB)
    cuda.stream(other, function() a:fill_(1) end)
    a:record_stream(other)
    a:free()
    local b = bytes(40 * MiB)
    cuda.set_per_process_memory_fraction(1)
    b:free()
  end)

  it("has garbage collected before it gives up, in the middle of backward, too", function()
    if not there() then return end
    local total = cuda.get_device_properties().total_memory
    cuda.set_per_process_memory_fraction(64 * MiB / total)
    collectgarbage("stop")
    local ok, message = pcall(function()
      for _ = 1, 10 do bytes(20 * MiB) end -- each is garbage
    end)
    collectgarbage("restart")
    cuda.set_per_process_memory_fraction(1)
    assert.is_true(ok, message)
  end)

  it("fails where it is told to, without a leak", function()
    if not there() then return end
    local x = moth.ones(1000):cuda()
    local before = stat("allocated_bytes")
    moth.memory.fail_at(1, true)
    local ok, message = pcall(function() return x:add(1):mul(2):sum():item() end)
    moth.memory.fail_at(0)
    assert.is_false(ok)
    assert.matches("out of memory", message)
    clean()
    assert.equal(before, stat("allocated_bytes"))
    for n = 1, 12 do
      moth.memory.fail_at(n, true)
      pcall(function() return (x + 1):mul(2):to(moth.float64):sum():item() end)
      moth.memory.fail_at(0)
    end
    clean()
    assert.equal(before, stat("allocated_bytes"))
    assert.equal(1000, x:sum():item())
  end)

  it("counts what is there now and at the most #M336", function()
    if not there() then return end
    cuda.reset_peak_memory_stats()
    local base = cuda.memory_allocated()
    local a = bytes(3 * MiB)
    local b = bytes(2 * MiB)
    a:free()
    assert.equal(base + 2 * MiB, cuda.memory_allocated())
    assert.equal(base + 5 * MiB, cuda.max_memory_allocated())
    cuda.reset_peak_memory_stats()
    assert.equal(base + 2 * MiB, cuda.max_memory_allocated())
    assert.is_true(cuda.memory_reserved() >= 20 * MiB and cuda.max_memory_reserved() >= cuda.memory_reserved())
    local free, total = cuda.mem_get_info()
    assert.is_true(free > 0 and free <= total - 20 * MiB)
    assert.matches("\n| allocated +|[^\n]+|\n", cuda.memory_summary())
    assert.matches("\n| large segments: %d+; free in them: ", cuda.memory_summary())
    for line in cuda.memory_summary():gmatch("[^\n]+") do assert.equal(76, #line, line) end
    cuda.reset_accumulated_memory_stats()
    assert.equal(0, stat("allocation", "allocated"))
    b:free()
    clean()
    assert.is_true(cuda.memory_reserved() < 20 * MiB)
    assert.has_error(function() cuda.set_per_process_memory_fraction(0) end)
    assert.has_error(function() cuda.memory_allocated(250) end)
  end)

  it("lets Lua's collector know of device memory", function()
    if not there() then return end
    cuda.reset_peak_memory_stats()
    local base = cuda.memory_allocated()
    for _ = 1, 200 do bytes(8 * MiB) end -- 1600 MiB of garbage in small handles
    assert.is_true(cuda.max_memory_allocated() - base <= 160 * MiB, cuda.memory_summary())
  end)
end)
