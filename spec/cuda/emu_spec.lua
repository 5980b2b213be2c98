-- The CUDA emulation finds the bugs that it is there for: each check of emu_check.cu is right without its
-- bug and wrong with it. Both programs are built here, once: one as it is, one with the sanitizers.
local build = os.getenv("MOTH_BUILD") or "build"
local out = build .. "/emu_check"

-- A run of the specs under a sanitizer preloads its library: not into what is started here.
local clean = "env -u LD_PRELOAD ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 "

local makefile = [[
SOURCES = $(filter-out %/cublaslt.cc,$(wildcard src/emu/*.cc)) spec/cuda/emu_check.cu
SAN     = -fsanitize=address,undefined -fno-sanitize-recover=undefined
FLAGS   = -std=c++20 -O1 -g1 -Wall -Wextra -Wno-unused-parameter -Isrc
all: $(O)/plain $(O)/sanitized
$(O)/plain: $(SOURCES:%=$(O)/plain_/%.o)
	@g++ -o $@ $^ -ldl -lpthread
$(O)/sanitized: $(SOURCES:%=$(O)/sanitized_/%.o)
	@g++ $(SAN) -o $@ $^ -ldl -lpthread
$(O)/plain_/%.o: % $(wildcard src/emu/*.h)
	@mkdir -p $(@D)
	@g++ $(FLAGS) -x c++ -c -o $@ $<
$(O)/sanitized_/%.o: % $(wildcard src/emu/*.h)
	@mkdir -p $(@D)
	@g++ $(FLAGS) $(SAN) -x c++ -c -o $@ $<
]]

--- The output and exit status of a shell command.
local function shell(command)
  local pipe = io.popen("{ " .. command .. "; } 2>&1; echo \"status $?\"")
  local text = pipe:read("*a")
  pipe:close()
  local said, status = text:match("^(.-)status (%d+)\n$")
  return said, tonumber(status)
end

local function check(program, name, bug, environment)
  return shell(("%s%s %s/%s %s %s"):format(clean, environment or "", out, program, name, bug and "bug" or ""))
end

describe("the CUDA emulation", function()
  setup(function()
    os.execute("mkdir -p " .. out)
    local file = assert(io.open(out .. "/Makefile", "w"))
    file:write(makefile)
    file:close()
    local said, status = shell(("%smake --no-print-directory -s -j2 -f %s/Makefile O=%s"):format(clean, out, out))
    assert.equal(0, status, said)
  end)

  -- name, which program finds it (plain or sanitized), the message
  local bugs = {
    { "tiled_matmul", "plain", "not so", "a barrier is missing in a tiled product" },
    { "reduction", "plain", "not so", "a barrier is missing in a block's reduction" },
    { "missing_lanes", "plain", "row_sum, block %(0, 0, 0%): deadlock: in warp 1 lanes 0%-17 wait in a shuffle",
      "lanes are missing in a shuffle" },
    { "wrong_mask", "plain", "halves, block %(0, 0, 0%): lane %d+ of warp 0 calls a shuffle with a mask",
      "a lane is not in its own mask" },
    { "uninitialised_shared", "plain", "not so", "shared memory is read before it is written" },
    { "out_of_bounds", "sanitized", "heap%-buffer%-overflow.-emu_check%.cu", "a store goes out of bounds" },
    { "out_of_static", "sanitized", "index 64 out of bounds", "a store leaves a shared array" },
    { "out_of_shared", "sanitized", "AddressSanitizer.-emu_check%.cu", "a store leaves dynamic shared memory" },
    { "misaligned", "sanitized", "misaligned address", "16 bytes are read from an address not fit for it" },
    { "use_after_free", "sanitized", "heap%-use%-after%-free", "memory is used after it was freed" },
    { "stale_block", "sanitized", "use%-after%-poison", "memory is used after an allocator took it back" },
    { "missing_event", "plain", "not so", "an event is missing between two streams", 8 },
    { "missing_record_stream", "plain", "not so", "memory is reused while another stream reads it", 8 },
    { "default_stream", "plain", "not so", "the default stream is believed to wait for every stream", 8 },
    { "pinned_reused", "plain", "not so", "pinned memory changes before it was copied" },
    { "pinned_read_early", "plain", "not so", "pinned memory is read before the copy came" },
    { "graph", "plain", "StreamCaptureUnjoined", "a captured stream is not joined", 4 },
    { "host_access", "plain", "status", "the host reads device memory (MOTH_CUDA_EMU_PROTECT=1)", 1,
      "MOTH_CUDA_EMU_PROTECT=1 " },
  }
  for _, b in ipairs(bugs) do
    local name, program, message, title, seeds, environment = unpack(b, 1, 6)
    it("sees it when " .. title, function()
      for seed = 1, seeds or 2 do
        local with = (environment or "") .. "MOTH_CUDA_EMU_SEED=" .. seed
        for _, p in ipairs { "plain", "sanitized" } do
          local said, status = check(p, name, false, with)
          assert.equal("right\n", said, ("%s %s %s"):format(with, p, name))
          assert.equal(0, status)
        end
        local said, status = check(program, name, true, with)
        assert.is_true(status ~= 0, ("%s %s bug: %s"):format(with, name, said))
        assert.matches(message, said .. "status " .. status)
      end
    end)
  end

  for _, name in ipairs { "disjoint_masks", "capture_errors", "errors", "order", "threads" } do
    it("behaves as CUDA does: " .. name, function()
      for _, p in ipairs { "plain", "sanitized" } do
        assert.equal("right\n", (check(p, name)))
      end
    end)
  end
end)
