-- Training and serving that go on for long. Training: shuffled batches, dropout, Adam, a scheduler, a checkpoint that
-- is written and read back now and then. After the steps that LuaJIT needs until its traces are made, what the process
-- holds must stay: memory within 1 MB, descriptors and threads exactly. By itself (`make soak`), in a heap without the
-- cases of other specs.
-- MOTH_SOAK: how many steps more.
local moth = require "moth"
local lfs = require "lfs"
local nn = moth.nn

local WARM = 200000
local STEPS = WARM + tonumber(os.getenv("MOTH_SOAK") or 1000000)
local EVERY = 200 -- steps from one checkpoint to the next

local function held()
  collectgarbage()
  collectgarbage()
  local h = { fds = 0 }
  for line in io.lines("/proc/self/status") do
    local name, n = line:match "^(%w+):%s*(%d+)"
    if name == "RssAnon" then h.kb = tonumber(n) elseif name == "Threads" then h.threads = tonumber(n) end
  end
  for _ in lfs.dir("/proc/self/fd") do h.fds = h.fds + 1 end
  return h
end

describe("a long training", function()
  for _, workers in ipairs { 0, 2 } do
    it(("holds no more at its end than at its beginning, with %d workers"):format(workers), function()
      moth.manual_seed(1)
      local x = moth.randn(100, 8)
      local data = moth.data.TensorDataset(x, x:sum(2):gt(0):to(moth.int64) + 1)
      local loader = moth.data.DataLoader(data, { batch_size = 16, shuffle = true, num_workers = workers,
        persistent_workers = true })
      local model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
      local optimizer = moth.optim.Adam(model:parameters(), { lr = 1e-3 })
      local scheduler = moth.optim.lr_scheduler.StepLR(optimizer, { step_size = 100, gamma = 0.99 })
      local criterion, path = nn.CrossEntropyLoss(), os.tmpname()
      finally(function() os.remove(path) end)

      local step, total, early = 0, 0, nil
      while step < STEPS do
        for inputs, labels in loader:iter() do
          optimizer:zero_grad()
          local loss = criterion(model(inputs), labels)
          loss:backward()
          optimizer:step()
          total = total + loss:item()
          step = step + 1
          if step % EVERY == 0 then
            moth.save({ model = model:state_dict(), optimizer = optimizer:state_dict(), step = step }, path)
            local was = moth.load(path)
            assert.equals(step, was.step)
            model:load_state_dict(was.model)
            optimizer:load_state_dict(was.optimizer)
          end
          if not early and step >= WARM then early = held() end
          if step == STEPS then break end
        end
        scheduler:step()
      end
      local late = held()
      print(("%d and %d steps, mean loss %.4f; memory %d kB, then %d kB; %d descriptors, %d threads"):format(WARM,
        STEPS - WARM, total / STEPS, early.kb, late.kb, late.fds, late.threads))
      assert.is_true(late.kb - early.kb < 1024, ("grown from %d to %d kB"):format(early.kb, late.kb))
      assert.equals(early.fds, late.fds)
      assert.equals(early.threads, late.threads)
    end)
  end
end)

-- A server that answers for long: requests in pieces of 32 on one connection.
describe("a long service #M428", function()
  it("holds no more at its end than at its beginning", function()
    if not require("moth.serve.front").available() then return pending "needs lua-http" end
    local path = os.tmpname()
    moth.export.save(moth.export(nn.Linear(4, 3):eval(), { moth.randn(2, 4) },
      { dynamic_shapes = { { [1] = moth.Dim("batch", { max = 64 }) } } }), path)
    local server = moth.serve.spawn { models = { net = path }, port = 0 }
    finally(function()
      server:stop()
      os.remove(path)
    end)
    local name = require("cjson").decode(server:get("/v2/models/net").body).inputs[1].name
    local pipe = io.popen("pgrep -P " .. server.pid)
    local engine = pipe:read "*l"
    pipe:close()
    local function resident(pid)
      for line in io.lines("/proc/" .. pid .. "/status") do
        local n = line:match "^RssAnon:%s*(%d+)"
        if n then return tonumber(n) end
      end
    end
    local client = server:connect()
    local request = client.format("POST", "/v2/models/net/infer",
      ('{"inputs":[{"name":%q,"shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'):format(name))
    local many = request:rep(32)
    local function ask(n)
      for _ = 1, n, 32 do
        client:send(many)
        for _ = 1, 32 do assert.equal(200, client:receive().status) end
      end
    end
    local steps = STEPS - WARM
    ask(math.min(WARM, steps))
    local front, own = resident(server.pid), resident(engine)
    ask(steps)
    assert.is_true(resident(server.pid) < front + 8192, resident(server.pid) .. " KB after " .. front)
    assert.is_true(resident(engine) < own + 1024, resident(engine) .. " KB after " .. own)
  end)
end)
