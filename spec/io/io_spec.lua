-- src/io is pure C, but for what makes tensors (image.c, mapped.c): its checks are, too (*_check.c), under
-- AddressSanitizer and UBSan.

local build = os.getenv("MOTH_BUILD") or "build"

--- Runs a shell command without the sanitizer that we may run under ourselves. Its output and whether it
-- went well.
local function shell(command)
  local pipe = io.popen("{ unset LD_PRELOAD; " .. command .. "; } 2>&1; echo status=$?")
  local output = pipe:read("*a")
  pipe:close()
  local text, status = output:match("^(.-)status=(%d+)%s*$")
  return text, status == "0"
end

describe("io", function()
  local program = build .. "/spec/io_check"

  lazy_setup(function()
    local text, ok = shell(([[mkdir -p %s/spec && ${CC:-gcc} -std=gnu17 -g -O1 -D_GNU_SOURCE -I. -Isrc -I%s/gen \
      -Wall -Wextra -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer \
      -Wl,--wrap=write,--wrap=fsync,--wrap=renameat,--wrap=fchmod,--wrap=openat \
      -o %s spec/io/*_check.c spec/fuzz/doubles.c src/core/environment.c \
      src/core/error.c src/core/thread.c $(ls src/io/*.c | grep -v -e image.c -e mapped.c) -ldl -lpthread -lm]])
      :format(build, build, program))
    assert(ok, text)
  end)

  local groups = { "json", "safetensors_cases", "safetensors_write", "safetensors_damage", "idx", "sha256",
    "sha256 MOTH_CPU=generic", "crc32", "crc32 MOTH_CPU=generic", "gunzip", "map", "write", "faults", "kill",
    "signals" }
  for _, case in ipairs(groups) do
    local group, environment = case:match("^(%S+) ?(.*)$")
    it(case .. " #quick", function()
      local folder = os.tmpname()
      os.remove(folder)
      local text, ok = shell(("mkdir %s && %s %s %s %s"):format(folder, environment, program, group, folder))
      shell("rm -rf " .. folder)
      assert(ok, text)
      assert.is_truthy(tonumber(text:match("(%d+) checks, 0 failures")) > 0, text)
    end)
  end
end)
