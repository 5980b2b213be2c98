-- The `moth` command, as a user meets it.

local build = os.getenv("MOTH_BUILD") or "build"
local moth = build .. "/moth"

--- Output (both streams) and exit status of a shell command; $M is the launcher, $F an empty file.
local function run(command)
  local file = os.tmpname()
  local pipe = io.popen(("{ M=%s; F=%s; %s\n} 2>&1; echo status=$?"):format(moth, file, command))
  local text, status = pipe:read("*a"):match("^(.-)status=(%d+)%s*$")
  pipe:close()
  os.remove(file)
  return text, tonumber(status)
end

describe("launcher #quick", function()
  it("prints versions and help", function()
    local text, status = run("$M --version")
    assert.equals(0, status)
    assert.matches("^moth %d+%.%d+%.%d+ %(LuaJIT 2%.1", text)
    text, status = run("$M --help")
    assert.equals(0, status)
    assert.matches("^usage: moth", text)
  end)

  it("runs a script with its arguments, past a shebang line", function()
    local text, status = run([[
      printf '#!/usr/bin/env moth\nprint(select("#", ...), ..., arg[0] == "%s", arg[2], #arg)' $F > $F
      $M $F "a b" c]])
    assert.equals(0, status)
    assert.equals("2\ta b\ttrue\tc\t2\n", text)
  end)

  it("gives scripts, standard input and code `moth` as a global", function()
    assert.equals("2\n", (run([[echo 'print(moth.ones(2):sum():item())' > $F; $M $F]])))
    assert.equals("2\n", (run([[echo 'print(moth.ones(2):sum():item())' | $M]])))
    assert.equals("2\n", (run([[$M -e 'print(moth.ones(2):sum():item())']])))
  end)

  it("takes an empty variable of the environment for one that is not set", function()
    local text = run([[MOTH_DATA= MOTH_CC= $M -e 'print(moth.config().cc.path)
      print(select(2, pcall(moth.datasets.MNIST, { root = "/nowhere" })))']])
    assert.matches("^/.-found in /nowhere, [^,]+, [^,]+, /nowhere/MNIST/raw\n", text)
  end)

  it("names the method where a tensor is compared with a number #M021", function()
    for _, code in ipairs { "local x = moth.ones(2); print(x < 0)", "print(0 <= moth.ones(2))" } do
      local text, status = run(("$M -e '%s'"):format(code))
      assert.equals(1, status)
      assert.matches("attempt to compare [^\n]+\nHINT: a tensor is compared by methods: x:lt%(0%), x:le, x:gt, x:ge, "
        .. "x:eq, x:ne; they give a bool tensor\nstack traceback", text)
      text = run(("echo '%s' | $M -i"):format(code))
      assert.matches("HINT: a tensor is compared by methods: x:lt(0)", text, 1, true)
    end
    assert.is_nil((run("$M -e 'print({} < 0)'")):find("HINT", 1, true))
  end)

  it("writes whole lines into a pipe at once", function()
    -- The child would write its line first if the first one waited in a buffer.
    assert.equals("one\ntwo\nthree", (run([[$M -e 'print "one" os.execute "echo two" io.write "three"' | cat]])))
  end)

  it("says that its output could not be written, but not of a pipe whose reader has gone", function()
    local text, status = run [[$M -e 'print(1)' > /dev/full]]
    assert.matches("^moth: standard output could not be written", text)
    assert.equal(1, status)
    assert.equal("1\n", (run [[$M -e 'for i = 1, 1e5 do print(i) end' | head -1]]))
    assert.equal(0, select(2, run [[$M -e 'print(1)' >&-]]))
  end)

  it("says what it needs on a processor from before 2009", function()
    local qemu = io.popen("command -v qemu-x86_64"):read "*a":match "%S+"
    if not qemu or (os.getenv "LD_PRELOAD" or "") ~= "" then return pending "needs qemu-x86_64, and no sanitizer" end
    local text, status = run(qemu .. " -cpu core2duo $M -e 'print(1)'")
    assert.matches("^moth: moth needs a processor with SSE4.2 and POPCNT %(x86%-64%-v2", text)
    assert.equals(1, status)
  end)

  it("finds its modules from a build folder outside of the tree", function()
    local text = run(([[D=$(LD_PRELOAD= mktemp -d) && cp -rP %s/gen %s/lua %s/*.so* $M $D && cd / # mktemp leaks
      $D/moth -e 'print(moth.ones(2):sum():item())'; rm -r $D]]):format(build, build, build))
    assert.equals("2\n", text)
  end)

  it("runs standard input", function()
    assert.equals("hello\tx\n", (run([[echo 'print("hello", ...)' | $M - x]])))
    assert.equals("hello\n", (run([[echo 'print("hello", ...)' | $M]])))
    assert.equals("", (run([[$M < /dev/null]])))
  end)

  it("collects earlier than LuaJIT, but as a program has chosen", function()
    local ask = [[echo '%s require "moth"; print(collectgarbage("setpause", 200))' > $F; luajit $F]]
    assert.equals("150\n", (run(ask:format(""))))
    assert.equals("300\n", (run(ask:format('collectgarbage("setpause", 300)'))))
  end)

  it("under MOTH_GUARD=1 works as ever, and ends where something writes behind a tensor", function()
    local work = "local x = moth.randn(7, 5, { requires_grad = true }); (x:t() * 2):exp():sum():backward(); " ..
      "print(x.grad:isfinite():all():item())"
    assert.equals("true\n", (run(("MOTH_GUARD=1 $M -e '%s'"):format(work))))
    local write = "MOTH_GUARD=1 $M -e 'local x = moth.ones(5); x:data()[%d] = 1' 2> /dev/null"
    assert.equals(0, (select(2, run(write:format(4)))))
    assert.not_equals(0, (select(2, run(write:format(5)))))
  end)

  it("logs calls where MOTH_LOGS says so", function()
    local text = run([[MOTH_LOGS=fusion,dispatch $M -e 'x = moth.ones(2) + 1']])
    local ones, add = text:match("^(%[moth dispatch%] ones [^\n]*)\n(%[moth dispatch%] add [^\n]*)\n$")
    assert.matches("ones %[%]  size: {2}  %(src/ops/create.lua:%d+%)  moth_cpu_ones ", ones)
    assert.matches("add %[CPU%]  self: float32 %[2%] cpu, other: 1, alpha: 1  %(src/ops/pointwise.lua:%d+%)  moth", add)
    assert.equals("", (run([[MOTH_LOGS=all,-dispatch $M -e 'x = moth.ones(2) + 1']])))
    assert.matches("^%[moth%] warning: MOTH_LOGS: there is no topic 'other'; topics are all, .*dispatch.*\n$",
      (run([[MOTH_LOGS=other,-cuda $M -e 'x = moth.ones(2) + 1']])))
    assert.equals("", (run([[TORCH_LOGS=other $M -e 'x = moth.ones(2) + 1']]))) -- PyTorch has other topics
  end)

  it("logs backward, with the rank in front of each line #M470", function()
    local step = [[ $M -e 'x = moth.ones(3):requires_grad_(); (x * 2):sum():backward()']]
    assert.matches("^%[moth autograd%] backward 1 from SumBackward0: 3 of 3 nodes ran\n$",
      (run("MOTH_LOGS=autograd" .. step)))
    local lines = run("RANK=3 MOTH_LOGS=+autograd,dist,recompiles" .. step)
    assert.matches("^%[rank 3%] %[moth autograd%]   SumBackward0: float32 %[%] cpu\n"
      .. "%[rank 3%] %[moth autograd%]   MulBackward0: float32 %[3%] cpu\n", lines)
    assert.matches("%[rank 3%] %[moth autograd%] backward 1 [^\n]+\n$", lines)
    assert.equals("", (run([[$M -e 'moth.set_logs "dispatch" moth.set_logs "" x = moth.ones(2)']])))
    assert.matches("^%[moth dispatch%] ones", (run([[$M -e 'moth.set_logs "dispatch" x = moth.ones(2)']])))
  end)

  it("writes each line of a log at once, long ones, too #M470", function()
    local lines = run([[printf '%s' '
      local moth, ffi = require "moth", require "ffi"
      ffi.cdef "int pipe2(int *fds, int flags); int dup2(int a, int b); long read(int fd, void *to, size_t n);"
      local fds, packet = ffi.new "int[2]", ffi.new "char[65536]"
      ffi.C.pipe2(fds, 0x4800) -- O_DIRECT, O_NONBLOCK: what one write gives is read by one read
      ffi.C.dup2(fds[1], 2)
      moth.set_logs "dispatch,kernel"
      for _ = 1, 5 do moth.ones(2, 3) end
      require("moth.utils.toolchain").log("kernel", true, ("x"):rep(3000))
      while true do
        local n = tonumber(ffi.C.read(fds[0], packet, 65536))
        if n <= 0 then break end
        print(n, (ffi.string(packet, n):gsub("\n", "|")))
      end' > $F; RANK=2 $M $F]])
    local count = 0
    for n, text in lines:gmatch("(%d+)\t([^\n]*)\n") do
      count = count + 1
      assert.matches("^%[rank 2%] %[moth %l+%] [^|]*|$", text)
      if text:find("[moth kernel]", 1, true) then assert.is_true(tonumber(n) > 3000) end
    end
    assert.equal(6, count)
  end)

  it("runs LuaJIT's own commands: its profiler, on and off #M492", function()
    local text, status = run([[$M -joff -e 'print(jit.status())']])
    assert.matches("^false", text)
    assert.equals(0, status)
    text = run([[$M -j on -j off -e 'print((jit.status()))']])
    assert.matches("^false", text)
    text, status = run([[printf 'local n = 0 for i = 1, 3e7 do n = n + math.sin(i) %% 3 end' > $F; $M -jp=fl $F]])
    assert.equals(0, status)
    assert.matches("100%%", text)
    text, status = run([[$M -jnonesuch -e 'print(1)']])
    assert.matches("^moth: %-j: LuaJIT has no command nonesuch\n", text)
    assert.equals(1, status)
    text, status = run([[$M -j]])
    assert.matches("^moth: %-j needs a value", text)
    assert.equals(2, status)
  end)

  it("requires modules by their last name", function()
    assert.equals("function\n", (run([[echo 'print(type(util.traceinfo))' > $F; $M -l jit.util $F]])))
  end)

  it("ends with status 1 and a traceback after an error", function()
    local text, status = run([[printf 'local function f() error("deep") end\nf()\n' > $F; $M $F]])
    assert.equals(1, status)
    assert.matches("^moth: .-:1: deep\nstack traceback:", text)
    assert.matches("in function 'f'", text)
    text, status = run([[echo 'error({})' | $M]])
    assert.equals(1, status)
    assert.matches("error object is a table value", text)
    text, status = run([[echo 'x = = 1' | $M]])
    assert.equals(1, status)
    assert.matches("unexpected symbol", text)
    text, status = run("$M /no/such/script.lua")
    assert.equals(1, status)
    assert.matches("No such file", text)
    text, status = run("$M --what")
    assert.equals(2, status)
    assert.matches("there is no option", text)
    text, status = run("$M -e")
    assert.equals(2, status)
    assert.matches("%-e needs a value", text)
  end)

  it("keeps the status of os.exit and closes the state", function()
    local _, status = run([[echo 'os.exit(7, true)' | $M]])
    assert.equals(7, status)
    local text
    text, status = run([[echo 'local p = newproxy(true) getmetatable(p).__gc = function() print("closed") end
      _G.p = p' | $M]])
    assert.equals(0, status)
    assert.equals("closed\n", text)
  end)

  it("finds the modules of its own build", function()
    local text = run([[echo 'print(package.path) print(package.cpath)' | $M]])
    assert.matches("/gen/%?%.lua;", text)
    assert.matches("/lua/%?%.lua;", text)
    assert.matches("^[^\n]+\n[^\n;]+/%?%.so;", text)
  end)
end)
