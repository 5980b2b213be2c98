-- `moth serve`, as a user meets it.
local moth = require "moth"
local command = require "moth.serve.command"

local has_http = require("moth.serve.front").available()
local program = (os.getenv "MOTH_BUILD" or "build") .. "/moth"

local function run(words)
  local pipe = io.popen(("env -u LUA_PATH -u LUA_CPATH %s %s 2>&1; echo status=$?"):format(program, words))
  local text, status = pipe:read("*a"):match "^(.-)status=(%d+)%s*$"
  pipe:close()
  return text, tonumber(status)
end

describe("moth serve #M428 #noasan", function()
  local path = os.tmpname()
  lazy_setup(function() moth.export.save(moth.export(function(x) return x * 2 end, { moth.ones(3) }), path) end)
  lazy_teardown(function() os.remove(path) end)

  it("reads its words", function()
    local config = os.tmpname() .. ".lua"
    finally(function() os.remove(config) end)
    local file = io.open(config, "w")
    file:write "return { models = { c = moth.ones and 'c.mth2', a = 'other' }, port = 7, drain = 3, hosts = { 'i' },\n\z
      limits = { queue = 9, body = 10 } }"
    file:close()
    local o, mode = command.parse { "a=x.mth2", "--port=9", "--max-size", "4", "--queue", "8", "--check", config,
      "--host-name", "h", "--insecure-open", "--quantize", "Q8_0", "--max-tokens=512",
      "--lookup", "--draft", "small" }
    assert.same({ port = 9, drain = 3, models = { a = "x.mth2", c = "c.mth2" }, batching = { max_size = 4 },
      limits = { queue = 8, body = 10 }, hosts = { "h", "i" }, insecure_open = true,
      llm = { quantize = "Q8_0", max_tokens = 512, lookup = 8, draft = "small" } }, o)
    assert.same({ check = true }, mode)
    assert.same({ models = { llama = "dir/llama//", ["q-1.5"] = "/x/q-1.5.gguf", net = "net.mth2", m = "m.lua" } },
      (command.parse { "dir/llama//", "/x/q-1.5.gguf", "net.mth2", "m=m.lua" }))
    for pattern, words in pairs { ["expected a model"] = {},
      ["there is no option --prot; did you mean '--port'?"] = { "--prot", "1" },
      ["--port needs a value"] = { "a=b", "--port" },
      ["--port: expected an integer from 0 to 65535, got 'x'"] = { "a=b", "--port", "x" },
      ["..: this is no name for a model; give one: NAME=.."] = { ".." },
      ["a b.gguf: this is no name for a model"] = { "a b.gguf" },
      ["the model a is given twice: b and c"] = { "a=b", "a=c" }, ["a=: expected NAME=FILE"] = { "a=" } } do
      local ok, why = pcall(command.parse, words)
      assert.is_false(ok)
      assert.matches(pattern, why.usage, 1, true)
    end
  end)

  it("says what is wrong, with an exit code", function()
    local text, status = run "serve --help"
    assert.equal(0, status)
    assert.matches("^usage: moth serve", text)
    text, status = run "serve --prot 1"
    assert.equal(2, status)
    assert.equal("moth serve: there is no option --prot; did you mean '--port'?\n\z
      moth serve --help lists the options\n", text)
    text, status = run "serve a=/no/such"
    assert.equal(1, status)
    assert.equal("moth serve: [serve] model a: cannot open /no/such: No such file or directory\n", text)
    text = run "serve --quantize Q3 --port 0 lm=spec/llm/fixtures/llama"
    if has_http then assert.matches("type 'Q3' cannot be made; there are Q8_0 and Q4_0", text) end
    if has_http then -- a file that is no model: one message, without the places in moth's own sources
      text, status = run "serve --port 0 a=README.md"
      assert.equal(1, status)
      assert.matches("^moth serve: %[serve%] model a: %[export.load%] README.md: [^\n]*\n$", text)
    end
    text, status = run([[-e 'package.preload["http.server"] = function() error("gone", 0) end
      os.exit(require("moth.serve.command").command { "a=x" })']])
    assert.equal(2, status)
    assert.matches("^moth serve needs lua%-http, for Lua 5.1 %(Debian: apt%-get install lua%-http%)", text)
  end)

  it("has a guide, which says when another server is better #M436", function()
    local file = io.open "docs/serve.md"
    local text = file:read "*a"
    file:close()
    local part = text:match "\n## When not to serve with moth\n(.*)"
    for _, name in ipairs { "vLLM", "TensorRT%-LLM", "llama%.cpp", "Triton" } do assert.matches(name, part) end
    for option in moth.cli.help(command.options):gmatch "\n  %-%-([%w-]+)" do -- each option is one of Lua's or told of
      local known = { ["max-size"] = "max_size", ["max-delay-ms"] = "max_delay_ms", ["max-body"] = "body",
        ["host-name"] = "hosts", ["cache-type"] = "cache" }
      assert.matches("[`-]" .. (known[option] or option:gsub("-", "_")), text:gsub("print%-nginx", "print_nginx"))
    end
  end)

  it("checks models, and writes a configuration for nginx", function()
    if has_http then
      local text, status = run("serve --check m=" .. path)
      assert.equal(0, status, text)
      assert.matches('m: {"name":"m","versions":["1"]', text, 1, true)
    end
    local text, status = run("serve --print-nginx --port 8123 --host-name models.example m=" .. path)
    assert.equal(0, status)
    for _, part in ipairs { 'load({ ["m"] = "' .. path .. '" }, 1)', "listen 127.0.0.1:8123;", "[::1] models.example;",
      "return 421", 'require("moth.serve.nginx").infer(ngx.var[1])', "/lua/?.lua" } do
      assert.matches(part, text, 1, true)
    end
    local depth = 0 -- brackets outside of patterns
    for bracket in text:gsub('"[^"\n]*"', ""):gmatch "[{}]" do depth = depth + (bracket == "{" and 1 or -1) end
    assert.equal(0, depth)
  end)
end)
