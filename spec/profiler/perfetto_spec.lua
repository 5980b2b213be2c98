-- Perfetto's traces, read by a reader of protobuf of our own. Field numbers: protos/perfetto/trace of google/perfetto.
local moth = require "moth"
local profiler = moth.profiler

-- The fields of a message: { [number] = { value, … } }, numbers and strings.
local function fields(s)
  local at, out = 1, {}
  local function varint()
    local n, scale = 0, 1
    while true do
      local b = s:byte(at)
      at = at + 1
      n = n + b % 128 * scale
      scale = scale * 128
      if b < 128 then return n end
    end
  end
  while at <= #s do
    local key = varint()
    local number, wire = math.floor(key / 8), key % 8
    local value
    if wire == 0 then
      value = varint()
    else
      assert(wire == 1 or wire == 2, "wire type " .. wire)
      local n = wire == 1 and 8 or varint()
      value = s:sub(at, at + n - 1)
      assert(#value == n, "the message is cut off")
      at = at + n
    end
    out[number] = out[number] or {}
    table.insert(out[number], value)
  end
  return out
end

-- Tracks by their names: lists of { name, category, begin, stop, depth, place, flow, over }.
local function read(path)
  local f = assert(io.open(path, "rb"))
  local trace = fields(f:read("*a"))
  f:close()
  os.remove(path)
  local sequences, tracks, process = {}, {}, nil
  for _, data in ipairs(trace[1]) do
    local packet = fields(data)
    local s = sequences[packet[10][1]]
    if packet[60] then
      local track = fields(packet[60][1])
      if track[3] then
        process = track[1][1]
      else
        assert(packet[13][1] == 1 and track[5][1] == process)
        local default = fields(fields(packet[59][1])[11][1])
        assert(default[11][1] == track[1][1])
        s = { categories = {}, names = {}, places = {}, open = {}, last = 0, list = {} }
        sequences[packet[10][1]], tracks[track[2][1]] = s, s.list
        s.list.thread = track[4] and fields(track[4][1])
      end
    else
      assert(packet[8][1] >= s.last, "time goes back")
      s.last = packet[8][1]
      for number, to in pairs { "categories", "names", [4] = "places" } do
        for _, one in ipairs(packet[12] and fields(packet[12][1])[number] or {}) do
          local entry = fields(one)
          s[to][entry[1][1]] = entry[4] and entry[2][1] .. ":" .. entry[4][1] or entry[2][1]
        end
      end
      local e = fields(packet[11][1])
      if e[9][1] == 1 then
        local event = { name = assert(s.names[e[10][1]]), category = assert(s.categories[e[3][1]]), begin = s.last,
          depth = #s.open, place = e[34] and assert(s.places[e[34][1]]), flow = e[47] and e[47][1],
          over = e[48] and e[48][1] }
        table.insert(s.open, event)
        table.insert(s.list, event)
      else
        assert(e[9][1] == 2 and #s.open > 0)
        table.remove(s.open).stop = s.last
      end
    end
  end
  for _, s in pairs(sequences) do assert(#s.open == 0, "an event has no end") end
  return tracks
end

describe("Perfetto's traces", function()
  it("have all events, nested, with names, places and arrows #M481 #quick", function()
    local x = moth.randn(8, 8, { requires_grad = true })
    local long = ("ü"):rep(2000)
    local prof = profiler.profile(function()
      profiler.record_function("a \"name\"\n", function() x:matmul(x):sum():backward() end)
      profiler.record_function(long, function() end)
    end)
    local path = os.tmpname() .. ".pftrace"
    prof:export_chrome_trace(path)
    local main = read(path)["main thread"] or error "no main thread"
    local events = prof:events()
    assert.equal(#events, #main)
    local flows, by = {}, {}
    for i, e in ipairs(main) do
      local depth, up = 0, events[i].parent
      while up do depth, up = depth + 1, up.parent end
      assert.equal(depth, e.depth)
      assert.is_true(math.abs(events[i].duration * 1000 - (e.stop - e.begin)) <= 1.5) -- is_close has float32
      if i < #main then assert.equal(events[i].name, e.name) end
      if e.flow then flows[e.flow] = 1 end
      if e.over then flows[e.over] = flows[e.over] + 1 end
      by[e.name] = e
    end
    assert.equal(("ü"):rep(500), main[#main].name)
    local both = 0
    for _, n in pairs(flows) do if n == 2 then both = both + 1 end end
    assert.equal(2, both) -- mm and sum
    assert.matches("profiler/perfetto_spec.lua:%d+$", by["moth::matmul"].place)
    assert.same({ "cpu_op", "backward", "user_annotation" }, { by["moth::mm"].category, by.MmBackward0.category,
      by["a \"name\"\n"].category })
    assert.error_matches(function() prof:export_chrome_trace("/no/such/folder/t.pftrace") end, "cannot be written")
  end)

  it("of threads are tracks of their own; they are a third of the JSON", function()
    local set = moth.data.Dataset:subclass("Set")
    function set.size() return 8 end
    function set.get(_, i) return moth.full({ 4 }, i):exp() end
    local x = moth.ones(4)
    local prof = profiler.profile(function()
      for _ in moth.data.DataLoader(set(), { batch_size = 2, num_workers = 1 }):iter() do moth.ones(1) end
      for _ = 1, 3000 do x:add(1) end
    end)
    local path = os.tmpname()
    prof:export_chrome_trace(path .. ".pftrace")
    prof:export_chrome_trace(path)
    local function size(name)
      local f = io.open(name)
      local n = f:seek("end")
      f:close()
      return n
    end
    assert.is_true(3 * size(path .. ".pftrace") < size(path))
    local count, tracks = 0, 0
    for _, list in pairs(read(path .. ".pftrace")) do
      tracks, count = tracks + 1, count + #list
      assert.is_number(list.thread[2][1])
    end
    assert.is_true(tracks >= 2)
    assert.equal(#prof:events(), count)
    os.remove(path)
  end)
end)
