-- moth.cli: options of scripts and of moth's own commands; --help, man pages, completion.
local moth = require "moth"
local cli = moth.cli
local program = (os.getenv "MOTH_BUILD" or "build") .. "/moth"

local spec = {
  "Trains a small network.",
  { "FILE...", "texts to learn from" },
  { "--steps N", "optimizer steps", 200, min = 1 },
  { "--lr X", "the learning rate", 1e-3 },
  { "-d, --device cpu|cuda", "where it trains", "cpu" },
  { "--resume", "goes on from the checkpoint" },
  "Output",
  { "--curve", "draws a curve", true },
  { "--workers", "processes that load", { 0, 1 }, type = "integer[]" },
  { "--lookup [N]", "tokens", bare = 8 },
  { "--stop TEXT", "ends an answer", several = true },
  { "--batch-size N", "samples", key = "loader.batch_size" },
}

local function output(command)
  local pipe = assert(io.popen(("{ %s\n} 2>&1; echo $?"):format(command)))
  local text = pipe:read "*a"
  pipe:close()
  local said, status = text:match "^(.-)(%d+)\n$"
  return said, tonumber(status)
end

local function written(text, ending)
  local path = os.tmpname() .. (ending or "")
  local f = assert(io.open(path, "w"))
  f:write(text)
  f:close()
  return path
end

local function wrong(words, from)
  local ok, why = pcall(cli.parse, from or spec, words)
  assert.is_false(ok)
  return why.usage or why
end

describe("moth.cli", function()
  it("gives defaults, by the types of the declaration", function()
    assert.same({ file = { "a" }, steps = 200, lr = 1e-3, device = "cpu", resume = false, curve = true,
      workers = { 0, 1 }, stop = {} }, cli.parse(spec, { "a" }))
  end)

  it("reads words in any order, with = and without, letters and --no-x", function()
    assert.same({ file = { "a", "-b" }, steps = 3, lr = -2, device = "cuda", resume = true, curve = false,
      workers = { 3, 4 }, lookup = 8, stop = { "x", "y,z" }, loader = { batch_size = 5 } },
      cli.parse(spec, { "--lr=-2", "a", "--steps", "3", "-d", "cuda", "--resume", "--no-curve", "--workers", "3,4",
        "--lookup", "--stop", "x", "--stop=y,z", "--batch_size", "5", "--", "-b" }))
    local o = cli.parse(spec, { "--lookup", "12", "-dcuda", "a", "--no-resume", "--curve=off" })
    assert.same({ 12, "cuda", false, false }, { o.lookup, o.device, o.resume, o.curve })
  end)

  it("does not change the declaration's own default", function()
    table.insert(cli.parse(spec, { "a" }).workers, 7)
    assert.same({ 0, 1 }, cli.parse(spec, { "a" }).workers)
  end)

  it("says what is wrong, and what may have been meant", function()
    for words, what in pairs {
      [""] = "expected FILE: texts to learn from",
      ["a --step 3"] = "there is no option --step; did you mean '--steps'?",
      ["a --steps x"] = "--steps: expected an integer of at least 1, got 'x'",
      ["a --steps 1.5"] = "--steps: expected an integer of at least 1, got '1.5'",
      ["a --steps 0"] = "--steps: expected an integer of at least 1, got '0'",
      ["a --device cudda"] = "--device: expected cpu or cuda, got 'cudda'; did you mean 'cuda'?",
      ["a --steps"] = "--steps needs a value", ["a --steps --lr 3"] = "--steps needs a value",
      ["a -z"] = "there is no option -z", ["a --resume=maybe"] = "--resume: expected true or false, got 'maybe'",
      ["a --no-steps"] = "there is no option --no-steps; did you mean '--steps'?",
      ["a --workers 1,x"] = "--workers: expected an integer, got 'x'",
      ["a --config /no/such"] = "--config: /no/such: No such file or directory",
    } do
      local list = {}
      for word in words:gmatch "%S+" do list[#list + 1] = word end
      assert.equal(what, wrong(list))
    end
    assert.equal(false, cli.parse({ "", { "--n [N]", "", bare = false } }, { "--n" }).n)
    assert.equal("there is no option --=3", wrong({ "--=3" }, { "", { "--n N" } }))
    assert.equal("--b: expected 1 or 2, got '3'", wrong({ "--b=3" }, { "", { "--b N", choices = { 1, 2 } } }))
    assert.equal("'x' is one argument too many", wrong({ "a", "x" }, { "", { "FILE" } }))
    assert.equal("'step' is no option; did you mean '--steps'?", wrong({ "step" }, { "", { "--steps N" } }))
  end)

  it("takes options from a file of JSON, before which the command line goes", function()
    local path = written '{"steps": 7, "workers": [1, 2], "resume": true, "file": ["u"], "batch_size": 3, "lr": 2.5}'
    finally(function() os.remove(path) end)
    local o = cli.parse(spec, { "--config", path, "--no-resume", "--steps=9" })
    assert.same({ 9, { 1, 2 }, false, { "u" }, 3, 2.5 }, { o.steps, o.workers, o.resume, o.file, o.loader.batch_size,
      o.lr })
    for text, what in pairs {
      ['{"step": 7}'] = "there is no option 'step'; did you mean 'steps'?", ["[1]"] = "expected a JSON object",
      ['{"steps": "7"}'] = "%-%-steps: expected an integer, got string",
      ["{"] = "expected a JSON object: line 1, column 2: ",
      ['{"steps": 1.5}'] = "^%-%-config .*: %-%-steps: expected an integer of at least 1, got '1.5'",
      ['{"workers": 3}'] = "expected a list",
      ['{"device": null}'] = "expected a text, got null", ['{"help": true}'] = "there is no option 'help'",
      ["error()"] = "expected a JSON object: ", ['{"lr": NaN}'] = "line 1, column 8: expected a value",
    } do
      local file = written(text)
      assert.matches(what, wrong { "a", "--config", file })
      os.remove(file)
    end
  end)

  it("has commands, arguments that end the options, variables, required options", function()
    local run = { "", strict = true, { "SCRIPT" }, { "[WORDS...]" }, { "--n N", "", env = "MOTH_CLI_SPEC_N" } }
    assert.same({ script = "s", words = { "--n", "3" } }, cli.parse(run, { "s", "--n", "3" }))
    moth.setenv("MOTH_CLI_SPEC_N", 4)
    finally(function() moth.setenv("MOTH_CLI_SPEC_N", nil) end)
    assert.same({ script = "s", n = 4, words = {} }, cli.parse(run, { "s" }))
    moth.setenv("MOTH_CLI_SPEC_N", "x")
    assert.equal("--n: expected an integer, got 'x', from the variable MOTH_CLI_SPEC_N", wrong({ "s" }, run))
    assert.same({ script = "s", n = 5, words = {} }, cli.parse(run, { "--n=5", "s" }))
    local switch = { "", { "--on", env = "MOTH_CLI_SPEC_N" } }
    assert.equal("--on: expected true or false, got 'x', from the variable MOTH_CLI_SPEC_N", wrong({}, switch))
    moth.setenv("MOTH_CLI_SPEC_N", "false")
    assert.same({ on = false }, cli.parse(switch, {}))
    local two = { "", commands = { { "Adds.", name = "add", { "A" }, { "[B]" } }, { "Ends.", name = "stop" } } }
    assert.same({ command = "add", a = "1" }, cli.parse(two, { "add", "1" }))
    assert.same({ command = "stop" }, cli.parse(two, { "stop" }))
    assert.equal("there is no command sotp; did you mean 'stop'?; there are add, stop", wrong({ "sotp" }, two))
    assert.equal("expected a command; there are add, stop", wrong({}, two))
    assert.equal("expected --model: a file", wrong({}, { "", { "--model FILE", "a file", required = true } }))
    local middle = { "", { "A" }, { "[B]" }, { "C" } }
    assert.same({ a = "1", c = "2" }, cli.parse(middle, { "1", "2" }))
    assert.same({ a = "1", b = "2", c = "3" }, cli.parse(middle, { "1", "2", "3" }))
  end)

  it("has one list of values that are given several times, and keeps the keys of a default", function()
    local lists = { "", { "--n N,…", "", type = "integer[]", several = true }, { "SIZES...", type = "integer[]" },
      { "--j JSON", "", { a = 1 }, type = "json" } }
    assert.same({ n = { 1, 2, 3 }, sizes = { 4, 5, 6 }, j = { a = 1 } },
      cli.parse(lists, { "--n", "1,2", "4,5", "6", "--n=3" }))
    local path = written '{"n": [1, 2], "sizes": [3]}'
    finally(function() os.remove(path) end)
    assert.same({ n = { 1, 2 }, sizes = { 3 }, j = { a = 1 } }, cli.parse(lists, { "--config", path }))
  end)

  it("names mistakes of a declaration", function()
    for what, one in pairs {
      ["expected a list: a text that says"] = {}, ["there is no type 'int'"] = { "", { "--n", type = "int" } },
      ["has no field 'choice'; did you mean 'choices'"] = { "", { "--n N", choice = {} } },
      ["%-%-n is declared twice"] = { "", { "--n N" }, { "--n X" } }, ["entry 2: expected a text"] = { "", 3 },
      ["the default of %-%-n: expected an integer, got string"] = { "", { "--n N", "", "a" } },
      ["the default of %-%-m: expected a or b, got 'c'"] = { "", { "--m a|b", "", "c" } },
      ["the default of %-%-n: expected an integer of at least 1"] = { "", { "--n N", "", 0, min = 1 } },
      ["the default of %-%-k: expected a list, got number"] = { "", { "--k N", "", 5, type = "integer[]" } },
      ["the default of %-%-l: expected an integer, got string"] = { "", { "--l N", "", { "a" }, several = true } },
      ["%-%-o and %-%-p have one key: o and o"] = { "", { "--o N" }, { "--p X", key = "o" } },
      ["%-%-q and %-%-r have one key: q%.a and q"] = { "", { "--q N", key = "q.a" }, { "--r X", key = "q" } },
      ["FILE and FILE have one key"] = { "", { "FILE" }, { "FILE" } },
      ["%-%-s and %-%-s have one key"] = { "", { "--s" }, commands = { { "", name = "go", { "--s" } } } },
      ["an option begins with its words"] = { "", { 3 } }, ["takes all that is left"] = { "", { "A..." }, { "B" } },
      ["expected %-%-name, or"] = { "", { "-name X" } },
      ["expected %-%-name, or .*"] = { "", { "--loader.batch B" } },
      ["%[N%]: bare says what it is without a value"] = { "", { "--n [N]" } },
      ["max must be a number, got string"] = { "", { "--n N", max = "3" } }, ["no commands"] = { "", commands = {} },
      ["key must be a string, got number"] = { "", { "--n N", key = 5 } },
      ["choices is empty"] = { "", { "--n N", choices = {} } },
      ["min is above max"] = { "", { "--n N", min = 3, max = 2 } },
      ["the list: it has no field 'comands'; did you mean 'commands'"] = { "", comands = {} },
      ["strict must be a boolean"] = { "", strict = 1, { "F" } },
    } do
      assert.error_matches(function() cli.parse(one, {}) end, what)
    end
  end)

  it("prints help", function()
    assert.equal([[
usage: x [options] FILE...
Trains a small network.
  FILE...                texts to learn from
  --steps N              optimizer steps (200)
  --lr X                 the learning rate (0.001)
  -d, --device cpu|cuda  where it trains (cpu)
  --resume               goes on from the checkpoint
Output:
  --[no-]curve           draws a curve (on)
  --workers N            processes that load (0,1)
  --lookup [N]           tokens
  --stop TEXT            ends an answer; several times
  --batch-size N         samples
  --config FILE          a JSON object of options; what the command line says goes before it
  -h, --help             prints this
]], cli.help(spec, "x"))
    assert.is_true(cli.parse(spec, { "--steps", "3", "--help" }).help)
  end)

  it("ends a script that asks for help, or is given what is wrong", function()
    local path = written([[local o = moth.cli { "Counts.", { "--to N", "the last", 3 } }
      print(o.to)]], ".lua")
    finally(function() os.remove(path) end)
    local name = path:match "[^/]*$"
    for words, want in pairs { [""] = { "3\n", 0 }, ["--to 5"] = { "5\n", 0 },
      ["--too 5"] = { ("%s: there is no option --too; did you mean '--to'?\n%s --help lists the options\n")
        :format(name, name), 2 } } do
      assert.same(want, { output(("%s %s %s"):format(program, path, words)) })
    end
    -- At the prompt the session goes on.
    local said = output(("printf '%%%%run %s --too 5\\n%%%%run %s --help\\n%%%%run %s --to 5\\n' | MOTH_HISTORY= %s -i")
      :format(path, path, path, program))
    assert.matches("there is no option --too; did you mean '--to'?", said, 1, true)
    assert.matches("usage: .*\nthe script has ended\n5\n$", said:gsub("the script has ended\n", "", 1))
    local text, status = output(("%s %s --help"):format(program, path))
    assert.equal(0, status)
    assert.matches("^usage: " .. name:gsub("%p", "%%%0") .. " %[options%]\nCounts.\n  %-%-to N ", text)
  end)
end)

describe("the commands of moth", function()
  local words = { "run", "serve", "generate", "chat", "convert", "perplexity", "kernel", "help", "completion" }

  it("have help and man pages that groff reads without a warning", function()
    local has_groff = os.execute "command -v groff >/dev/null" == 0
    for _, word in ipairs { "", unpack(words) } do
      local text, status = output(("%s help %s"):format(program, word))
      assert.equal(0, status)
      assert.matches("^usage: moth", text)
      local page = output(("%s help --man %s"):format(program, word))
      assert.matches("^%.TH ", page)
      if has_groff then
        assert.equal("", (output(("%s help --man %s | groff -man -ww -z -Tutf8"):format(program, word))))
      end
    end
    assert.matches("got 'serv'; did you mean 'serve'?", (output(program .. " help serv")), 1, true)
    assert.matches("there is no option --profle; did you mean '--profile'?", (output(program .. " --profle x.lua")), 1,
      true)
    assert.matches("moth: there is no command serv; did you mean 'serve'?", (output(program .. " serv x=y")), 1,
      true)
    assert.matches("cannot open xyzzy", (output(program .. " xyzzy")))
    assert.matches("^usage: moth kernel install ", (output(program .. " kernel install --help")))
  end)

  it("are completed by bash", function()
    if os.execute "command -v bash >/dev/null" ~= 0 then return pending "there is no bash" end
    local path = written(cli.completion(require("moth.cli.commands").program(), "bash"))
    finally(function() os.remove(path) end)
    local function complete(...)
      local list = {}
      for i, word in ipairs { ... } do list[i] = "'" .. word .. "'" end
      local text, status = output(([[bash -c 'compopt() { :; }; source %s; COMP_WORDS=(%s); COMP_CWORD=%d; _moth
        printf "%%s\n" "${COMPREPLY[@]}"']]):format(path, table.concat(list, " "):gsub("'", "\""), #list - 1))
      assert.equal(0, status, text)
      return "\n" .. text
    end
    local first = complete("moth", "")
    for _, word in ipairs(words) do assert.matches("\n" .. word .. "\n", first) end
    assert.equal("\n--max-body\n--max-delay-ms\n--max-seqs\n--max-size\n--max-tokens\n",
      (complete("moth", "serve", "--max-"):gsub("^\n(.*)\n$", function(text)
        local list = {}
        for word in text:gmatch "%S+" do list[#list + 1] = word end
        table.sort(list)
        return "\n" .. table.concat(list, "\n") .. "\n"
      end)))
    assert.equal("\nstatic\n", complete("moth", "run", "--rdzv-backend", "s"))
    assert.equal("\nstatic\n", complete("moth", "run", "--rdzv-backend", "=", "s"))
    assert.equal("\nuninstall\n", complete("moth", "kernel", "u"))
    assert.equal("\nzsh\n", complete("moth", "completion", "z"))
    assert.equal("\nbash\nzsh\n", complete("moth", "completion", ""))
    assert.equal("\nkernel\n", complete("moth", "help", "k"))
    assert.matches("'%-q %-%-config", cli.completion({ "", { "-q", "", true } }, "bash"))
    assert.equal("\n--sys-prefix\n", complete("moth", "kernel", "install", "--s"))
    assert.matches("\nREADME.md\n", complete("moth", "REA"))
    assert.matches("\nREADME.md\n", complete("moth", "run", "--tee", "3", "REA"))
    assert.equal("\n--profile\n", complete("moth", "--prof"))
  end)

  it("are completed by zsh", function()
    local path = written(cli.completion(require("moth.cli.commands").program(), "zsh"))
    finally(function() os.remove(path) end)
    local f = io.open(path)
    local text = f:read "*a"
    f:close()
    assert.matches("^#compdef moth\n", text)
    for _, word in ipairs(words) do assert.matches("\n_moth_" .. word .. "%(%) {\n", text) end
    assert.matches("'--rdzv-backend=[both are the store of machine 0]:static c10d:(static c10d)'", text, 1, true)
    assert.matches("'1:shell:(bash zsh)'", text, 1, true)
    if os.execute "command -v zsh >/dev/null" == 0 then assert.equal("", (output("zsh -n " .. path))) end
  end)
end)

describe("examples", function()
  it("declare their options by moth.cli, and none reads arg by itself", function()
    local pipe = io.popen [[grep -nE '\barg\[[1-9i]|#arg|arg\[at\]' examples/*.lua examples/*/*.lua]]
    local found = {}
    for line in pipe:lines() do
      -- One passes its words on, one writes a script.
      if not line:find "bench_ddp_memory" and not line:find "lab_compile" then found[#found + 1] = line end
    end
    pipe:close()
    assert.same({}, found)
    assert.matches("^usage: char_gpt.lua %[options%]\nA character model", (output(program
      .. " examples/char_gpt.lua --help")))
    assert.matches("there is no option --step; did you mean '--steps'?", (output(program
      .. " examples/vae.lua --step 3")), 1, true)
  end)
end)
