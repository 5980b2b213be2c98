-- moth.serve over HTTP: one server in a process of its own answers all of these.
local moth = require "moth"
local cjson = require "cjson"
local ffi = require "ffi"

local has_http = require("moth.serve.front").available()
-- Not under ASan: OpenSSL and cqueues leave memory behind at the end of a process.
local function describe_served(name, fn) (has_http and describe or pending)(name .. " #noasan", fn) end

-- Exported models, in files.
local function save(fn, args, o)
  local path = os.tmpname()
  moth.export.save(moth.export(fn, args, o), path)
  return path
end

local function floats(...) return ffi.string(ffi.new("float[?]", select("#", ...), ...), 4 * select("#", ...)) end

describe_served("moth.serve #M428 #M429", function()
  local net, server, files = nil, nil, {}

  lazy_setup(function()
    moth.manual_seed(3)
    net = moth.nn.Sequential(moth.nn.Linear(4, 8), moth.nn.ReLU(), moth.nn.Linear(8, 3)):eval()
    files[1] = save(net, { moth.randn(2, 4) }, { dynamic_shapes = { { [1] = moth.Dim("batch", { max = 64 }) } } })
    files[2] = save(function(t) return { sum = t.a:to(moth.float64) + t.b:sum(), mask = t.a:gt(1), big = t.a * 3 } end,
      { { a = moth.ones({ 3 }, { dtype = moth.int64 }), b = moth.randn(2):to(moth.float16) } })
    files[3] = save(function(x) return 1 / x end, { moth.ones(2) })
    files[4] = save(function(x, i) return x:index_select(2, i) end,
      { moth.ones(2, 4), moth.ones({ 1 }, { dtype = moth.int64 }) })
    server = moth.serve.spawn { port = 0, limits = { body = 4096, connections = 64 }, hosts = { "models.example" },
      models = { net = files[1], mixed = files[2], divide = files[3],
        choose = { path = files[4], batching = { max_size = 4 } } } }
  end)
  lazy_teardown(function()
    if server then assert.equal(0, server:stop()) end
    for _, path in ipairs(files) do os.remove(path) end
  end)

  local function infer(model, request, headers)
    local answer = server:post("/v2/models/" .. model .. "/infer", type(request) == "table" and cjson.encode(request)
      or request, headers)
    return answer.status, answer.headers["content-type"] == "application/json" and cjson.decode(answer.body)
      or answer.body, answer
  end

  it("answers as the model does, to the bit", function()
    local x = moth.randn(1, 4)
    local status, out = infer("net", { id = "a", inputs = { { name = "x1", shape = { 1, 4 }, datatype = "FP32",
      data = x:view(-1):totable() } } })
    assert.equal(200, status)
    assert.equal("a", out.id)
    assert.same({ 1, 3 }, out.outputs[1].shape)
    assert.is_true(moth.equal(moth.tensor { out.outputs[1].data }, net(x):detach()))
  end)

  it("answers clients that want the connection closed after it, as Python's urllib does", function()
    for _, word in ipairs { "close", "Close", "close, TE" } do
      local status, _, answer = infer("net", { inputs = { { name = "x1", shape = { 1, 4 }, datatype = "FP32",
        data = { 1, 2, 3, 4 } } } }, { connection = word })
      assert.equal(200, status, word)
      assert.equal("close", answer.headers.connection)
    end
  end)

  it("answers batches, nested lists and names of outputs", function()
    local x = moth.randn(5, 4)
    local status, out = infer("net", { inputs = { { name = "x1", shape = { 5, 4 }, datatype = "FP32",
      data = x:totable() } }, outputs = { { name = "y1" } } })
    assert.equal(200, status)
    assert.is_close(moth.tensor(out.outputs[1].data):view(5, 3), net(x):detach())
    status, out = infer("mixed", [[{"inputs":[{"name":"t_b","shape":[2],"datatype":"FP16","data":[0.5,-2]},
      {"name":"t_a","shape":[3],"datatype":"INT64","data":[1,2,9007199254740991]}]}]])
    if status ~= 200 then error(cjson.encode(out)) end
    local by_name = {}
    for _, o in ipairs(out.outputs) do by_name[o.name] = o end
    assert.same({ -0.5, 0.5, 9007199254740989.5 }, by_name.sum.data)
    assert.same({ false, true, true }, by_name.mask.data)
    assert.equal("BOOL", by_name.mask.datatype)
  end)

  it("takes and gives tensors in binary", function()
    local head = cjson.encode { inputs = { { name = "x1", shape = { 2, 4 }, datatype = "FP32",
      parameters = { binary_data_size = 32 } } }, parameters = { binary_data_output = true } }
    local x = moth.arange(1, 9):view(2, 4):to(moth.float32)
    local status, body, answer = infer("net", head .. floats(1, 2, 3, 4, 5, 6, 7, 8),
      { ["inference-header-content-length"] = #head })
    assert.equal(200, status)
    local n = tonumber(answer.headers["inference-header-content-length"])
    local out = cjson.decode(body:sub(1, n))
    assert.equal(24, out.outputs[1].parameters.binary_data_size)
    local values = ffi.cast("const float *", ffi.cast("const char *", body) + n)
    local wanted = net(x):detach()
    for i = 0, 5 do assert.near(wanted:view(-1)[i + 1]:item(), values[i], 1e-5) end
  end)

  it("refuses with the field's path", function()
    local function refused(pattern, input, model)
      local status, out = infer(model or "net", { inputs = { input } })
      assert.equal(400, status)
      assert.matches(pattern, out.error)
    end
    local function input(o)
      return { name = o.name or "x1", shape = o.shape or { 1, 4 }, datatype = o.datatype or "FP32",
        data = o.data or { 1, 2, 3, 4 } }
    end
    refused("^inputs%[0%].name: there is no input 'z'; there are: x1", input { name = "z" })
    refused("^inputs%[0%].shape: expected %[%-1,4%], got %[1,5%]", input { shape = { 1, 5 } })
    refused("^inputs%[0%].shape%[0%]: expected %d to 64 for batch, got 65", input { shape = { 65, 4 } })
    refused("^inputs%[0%].datatype: expected FP32, got INT8", input { datatype = "INT8" })
    refused("^inputs%[0%].data: expected 4 elements, got 3", input { data = { 1, 2, 3 } })
    refused("^inputs%[0%].data%[2%]: expected a number", input { data = { 1, 2, "3", 4 } })
    for body, pattern in pairs {
      ["{"] = "^body: is no JSON object", ["[]"] = "^inputs: expected a list", ["[1]"] = "^body: expected an object",
      ['{"inputs":[{"name":1e999,"shape":[1,4]}]}'] = "^inputs%[0%].name: there is no input 'inf'",
      ["{\"inputs\":[NaN]}"] = "^body: is no JSON",
      ["{\"inputs\":[],\"x\":1}"] = "^x: there is no such field", ["{\"inputs\":[]}"] = "^inputs: 'x1' is missing",
      [("["):rep(100) .. ("]"):rep(100)] = "^body: is no JSON object",
    } do
      local status, out = infer("net", body)
      assert.equal(400, status)
      assert.matches(pattern, out.error)
    end
  end)

  it("computes no rows, knows versions, and refuses what it would have to leave out", function()
    local empty = { name = "x1", shape = { 0, 4 }, datatype = "FP32" }
    local status, out = infer("net", (cjson.encode { inputs = { empty } }:gsub("}]}", ',"data":[]}]}')))
    assert.equal(200, status)
    assert.same({ 0, 3 }, out.outputs[1].shape)
    assert.same({}, out.outputs[1].data)
    local one = { name = "x1", shape = { 1, 4 }, datatype = "FP32", data = { 1, 2, 3, 4 } }
    local path = "/v2/models/net/versions/1"
    assert.equal(200, server:get(path).status)
    assert.equal(200, server:get(path .. "/ready").status)
    assert.equal(200, server:post(path .. "/infer", cjson.encode { inputs = { one } }).status)
    assert.equal(404, server:get("/v2/models/net/versions/2").status)
    for name, value in pairs { classification = 2, shared_memory_region = "r" } do
      status, out = infer("net", { inputs = { one }, outputs = { { name = "y1", parameters = { [name] = value } } } })
      assert.equal(400, status)
      assert.equal("outputs[0].parameters." .. name .. ": is not supported here", out.error)
    end
    one.datatype = cjson.null
    status, out = infer("net", { inputs = { one } })
    assert.equal(400, status)
    assert.equal("inputs[0].datatype: expected FP32, got null", out.error)
  end)

  it("goes on when nobody reads its messages", function() -- one a failing request: more than a pipe holds
    local client = server:connect()
    for _ = 1, 600 do
      local answer = client:request("POST", "/v2/models/choose/infer", [[{"inputs":[
        {"name":"x","shape":[2,4],"datatype":"FP32","data":[1,2,3,4,5,6,7,8]},
        {"name":"i","shape":[1],"datatype":"INT64","data":[9]}]}]])
      assert.equal(500, answer.status)
    end
    client:close()
    assert.is_true(#server:messages() > 60000)
  end)

  it("says what the model says, and no more", function()
    local status, out = infer("choose", { inputs = {
      { name = "x", shape = { 2, 4 }, datatype = "FP32", data = { 1, 2, 3, 4, 5, 6, 7, 8 } },
      { name = "i", shape = { 1 }, datatype = "INT64", data = { 9 } } } })
    assert.equal(500, status)
    assert.matches("index", out.error)
    assert.not_matches("\n", out.error)
    status, out = infer("divide", { inputs = { { name = "x", shape = { 2 }, datatype = "FP32", data = { 0, 1 } } } })
    assert.equal(500, status)
    assert.matches("NaN or infinite", out.error)
  end)

  it("tells of models, health and metrics", function()
    assert.equal('{"ready":true}', server:get("/v2/health/ready").body)
    assert.equal(200, server:get("/v2/health/live").status)
    assert.equal("moth", cjson.decode(server:get("/v2").body).name)
    local about = cjson.decode(server:get("/v2/models/net").body)
    assert.same({ { name = "x1", datatype = "FP32", shape = { -1, 4 } } }, about.inputs)
    assert.equal(200, server:get("/v2/models/net/ready").status)
    local text = server:get("/metrics").body
    assert.matches('moth_requests_total{model="net",code="200"} %d', text)
    assert.matches('moth_batch_rows_bucket{model="net",le="%+Inf"} %d', text)
    for line in text:gmatch "[^\n]+" do
      assert.is_truthy(line:find "^# [HT]" or line:find "^[%w_]+{[^{}]*} %-?[%d.e+-]+$"
        or line:find "^[%w_]+ %d+$", line)
    end
    assert.matches('"data":[]', server:get("/v1/models").body, 1, true)
  end)

  it("keeps its limits", function()
    assert.equal(404, server:get("/nothing").status)
    assert.equal(404, server:get("/v2/models/none").status)
    local answer = server:get("/v2/models/net/infer")
    assert.equal(405, answer.status)
    assert.equal("POST", answer.headers.allow)
    assert.equal(413, (infer("net", (" "):rep(5000))))
    assert.equal(415, (infer("net", "x", { ["content-encoding"] = "br" })))
    local client
    for host, status in pairs { ["evil.example"] = 421, ["models.example:80"] = 200, ["[::1]:1"] = 200,
      ["10.1.2.3"] = 200 } do
      client = server:connect()
      client:send("GET /v2 HTTP/1.1\r\nhost: " .. host .. "\r\n\r\n")
      assert.equal(status, client:receive().status)
      client:close()
    end
    client = server:connect()
    assert.equal(200, client:request("HEAD", "/v2").status)
    assert.equal(200, client:request("GET", "/v2").status)
    client:close()
  end)
end)

describe_served("moth.serve's batches #M430", function()
  it("an engine that is free takes all that waits", function()
    local here = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$"
    package.path = here .. "/?.lua;" .. package.path
    local server = moth.serve.spawn { port = 0, batching = { max_size = 8 },
      models = { slow = { engine = "dying_engine", options = { pause = 0.15 } } } }
    finally(function() server:stop() end)
    local clients = {}
    for i = 1, 6 do
      clients[i] = server:connect()
      clients[i]:send(clients[i].format("POST", "/v2/models/slow/infer", cjson.encode { inputs = { { name = "x1",
        shape = { i % 2 + 1, 4 }, datatype = "FP32", data = moth.full({ (i % 2 + 1) * 4 }, i):totable() } } }))
      if i == 1 then require("moth.utils.system").sleep(0.05) end
    end
    for i = 1, 6 do -- each gets its own rows
      local out = cjson.decode(clients[i]:receive().body).outputs[1]
      assert.same({ i % 2 + 1, 4 }, out.shape)
      assert.same(moth.full({ (i % 2 + 1) * 4 }, i):totable(), out.data)
    end
    local text = server:get("/metrics").body
    assert.matches('moth_batch_rows_count{model="slow"} [23]\n', text)
    assert.matches('moth_batch_rows_sum{model="slow"} 9', text, 1, true)
  end)
end)

describe_served("moth.serve's options", function()
  it("are checked, with what to do", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local function refused(pattern, o) assert.error_matches(function() moth.serve(o) end, pattern) end
    refused("models: expected a table { name = path }, got nil", {})
    refused("unknown option 'prot'; did you mean 'port'", { models = { a = path }, prot = 1 })
    refused("model a: cannot open /no/such: No such file", { models = { a = "/no/such" } })
    refused("names of models of letters", { models = { ["../a"] = path } })
    refused("model a: unknown option 'pth'", { models = { a = { pth = path } } })
    refused("host 0.0.0.0 can be reached from other machines: give token_file", { models = { a = path },
      host = "0.0.0.0" })
    os.execute("echo secret-word > " .. path .. "; chmod 644 " .. path)
    refused("token_file: .* has mode 644", { models = { a = path }, token_file = path })
    refused("limits: unknown option 'bodies'", { models = { a = path }, limits = { bodies = 1 } })
    refused("reload: expected 'start_first' or 'stop_first'", { models = { a = path }, reload = "now" })
    refused("model a path: expected a text, got table", { models = { a = { path = {} } } })
    refused("model a: options are those of an engine", { models = { a = { path = path, options = {} } } })
    refused("llm: expected a table of options of language models, got string", { models = { a = path }, llm = "Q8_0" })
    refused("quantize: is an option of language models, and no model here is one", { models = { a = path },
      llm = { quantize = "Q8_0" } })
    local both = moth.serve._configure { llm = { quantize = "Q4_0", max_seqs = 2 },
      models = { a = path, b = "spec/llm/fixtures/llama", c = moth.serve.llm(path, { quantize = "Q8_0" }) } }
    local function of(name) return both.models[name].description.options end
    assert.same({ path = path }, of "a")
    assert.same({ path = "spec/llm/fixtures/llama", quantize = "Q4_0", max_seqs = 2 }, of "b")
    assert.same({ path = path, quantize = "Q8_0", max_seqs = 2 }, of "c")
    refused("plain data: function: type not supported", { models = { a = moth.serve.llm(path, { template = print }) } })
    for name, value in pairs { hosts = "h", admin = 5, token_file = {}, insecure_open = "no", host = "" } do
      refused(name .. ": expected", { models = { a = path }, [name] = value })
    end
    os.execute("chmod 600 " .. path)
    local link = os.tmpname()
    os.execute(("ln -sf %s %s"):format(path, link))
    assert.equal("secret-word", moth.serve._configure({ models = { a = path }, token_file = link }).token)
    assert.equal("float16", moth.serve._configure({ models = { a = moth.serve.llm(path, { dtype = moth.float16 }) } })
      .models.a.description.options.dtype:match "%w+$")
    os.remove(link)
    -- a unix socket takes no other file's place
    refused("admin: .* is there, and no socket", { models = { a = path }, admin = path, port = 0 })
    refused("at most 107 bytes", { models = { a = path }, admin = "/tmp/" .. ("x"):rep(120), port = 0 })
    assert.is_true(moth.utils.system.exists(path))
  end)

  it("a model that does not load ends the server, with the reason", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    os.execute("echo nonsense > " .. path)
    assert.error_matches(function() moth.serve.spawn { models = { a = path }, port = 0 } end,
      "%[serve.spawn%] %[serve%] model a: ")
  end)

  it("go to a server's process with dtypes and devices; a GGUF file is a language model", function()
    local folder, gguf = "spec/llm/fixtures/llama", os.tmpname() .. ".gguf"
    finally(function() os.remove(gguf) end)
    local model, tokenizer = moth.models.load(folder)
    moth.models.save_gguf(model, gguf, { type = "Q8_0", tokenizer = tokenizer })
    local server = moth.serve.spawn { port = 0, threads = 1, device = moth.device "cpu",
      models = { a = moth.serve.llm(folder, { dtype = moth.float32 }), b = gguf } }
    for _, name in ipairs { "a", "b" } do
      local answer = server:post("/v1/completions", ('{"model":"%s","prompt":"It is","max_tokens":1}'):format(name))
      assert.equal(200, answer.status, answer.body)
    end
    assert.equal(0, server:stop())
    local bad = { a = moth.serve.llm(folder, { template = print }) }
    assert.error_matches(function() moth.serve.spawn { models = bad } end, "plain data: function")
  end)

  it("a server runs once", function()
    local path, begun = save(function(x) return x end, { moth.ones(2) }), false
    finally(function() os.remove(path) end)
    local server = moth.serve { models = { a = path }, port = 0, threads = 1 }
    server:run(function()
      begun = true
      server:stop()
    end)
    assert.is_true(begun)
    assert.error_matches(function() server:run() end, "has run already")
  end)
end)
