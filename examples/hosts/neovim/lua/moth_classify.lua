--- A classifier of text that trains and answers inside Neovim.
--
--     :MothLearn [folder …]    learns what files are below the folders (without one, Neovim's own runtime): the
--                              ending of a name is the class. It works beside you, 10 ms at a time; with ! it waits
--     :[range]MothClassify     says what the text of the buffer, or of the lines, looks like
--
-- What was learned is kept in stdpath("data")/moth_classify.mth.
local moth = require "moth"
local nn = moth.nn
local M = {}

local BUCKETS, WINDOW = 2048, 1500  -- hashed trigrams; bytes that are looked at together
local CLASSES, FILES, PARTS = 8, 40, 4 -- at most: classes, files of each, windows of a file
local SLICE, STEPS, BATCH = 0.010, 300, 32

-- One process, one thread of Lua: the editor's. Its ops are small, more threads would only wait for each other.
moth.set_num_threads(1)

local function say(text, ...) vim.api.nvim_echo({ { "moth: " .. text:format(...) } }, true, {}) end

-- Text -> float32 (BUCKETS): the counts of its trigrams, as a vector of length 1.
local function features(text)
  local x = moth.zeros(BUCKETS)
  local count = x:data() -- a float *, which counts from 0
  local a, b = 0, 0
  for i = 1, #text do
    local c = text:byte(i)
    local at = (a * 7919 + b * 263 + c) % BUCKETS
    count[at] = count[at] + 1
    a, b = b, c
  end
  x:sqrt_()
  return x:div_(math.max(x:norm():item(), 1e-6))
end

local function network(classes)
  return nn.Sequential(nn.Linear(BUCKETS, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, classes))
end

-- Files by the ending of their names, for the most frequent endings: { { name, paths }, … }.
local function collect(folders)
  local of, list = {}, {}
  for _, folder in ipairs(folders) do
    for _, path in ipairs(vim.fn.globpath(folder, "**/*.*", 0, 1)) do
      local ending = path:match("%.(%w+)$")
      if ending and vim.fn.isdirectory(path) == 0 then
        if not of[ending] then
          of[ending] = { name = ending, paths = {} }
          list[#list + 1] = of[ending]
        end
        table.insert(of[ending].paths, path)
      end
    end
  end
  table.sort(list, function(p, q)
    if #p.paths ~= #q.paths then return #p.paths > #q.paths end
    return p.name < q.name
  end)
  while #list > CLASSES or #list > 0 and #list[#list].paths < 3 do list[#list] = nil end
  return list
end

-- What runs as a coroutine: reads, trains, saves. It yields often.
local function training(folders)
  local classes, names, held = collect(folders), {}, 0
  local inputs, labels, test_inputs, test_labels = {}, {}, {}, {}
  if #classes < 2 then error("two kinds of files are needed, with three files of each", 0) end
  for k, class in ipairs(classes) do
    names[k] = class.name
    for i = 1, math.min(#class.paths, FILES) do
      local path = class.paths[math.floor((i - 1) * #class.paths / math.min(#class.paths, FILES)) + 1]
      local file = io.open(path, "rb")
      local text = file and file:read(WINDOW * PARTS) or ""
      if file then file:close() end
      local to, class_of = inputs, labels
      if i % 5 == 0 then to, class_of = test_inputs, test_labels end -- every fifth file is not trained on
      for first = 1, #text, WINDOW do
        to[#to + 1], class_of[#class_of + 1] = features(text:sub(first, first + WINDOW - 1)), k
      end
      coroutine.yield()
    end
  end
  local x, y = moth.stack(inputs), moth.tensor(labels, { dtype = moth.int64 })
  local model = network(#names)
  local opt = moth.optim.Adam(model:parameters(), { lr = 3e-3 })
  for _ = 1, STEPS do
    local rows = moth.randint(1, x:size(1) + 1, { BATCH })
    opt:zero_grad()
    nn.functional.cross_entropy(model(x:index_select(1, rows)), y:index_select(1, rows)):backward()
    opt:step()
    coroutine.yield()
  end
  M.model, M.names = model:eval(), names
  moth.save({ model = model:state_dict(), names = names }, M.path())
  if #test_inputs > 0 then
    held = model(moth.stack(test_inputs)):argmax(2):eq(moth.tensor(test_labels)):float():mean():item()
  end
  say("learned %s from %d windows of text; of %d others %.0f %% are told right", table.concat(names, ", "), x:size(1),
    #test_inputs, 100 * held)
end

--- Where the weights are kept.
function M.path() return vim.fn.stdpath("data") .. "/moth_classify.mth" end

--- Learns beside the user's work: at most SLICE seconds of each turn of Neovim's loop.
function M.learn(given)
  local folders = #given.fargs > 0 and given.fargs or { vim.env.VIMRUNTIME }
  local work = coroutine.create(training)
  local function go_on()
    local stop = vim.loop.hrtime() + SLICE * 1e9
    repeat
      local ok, message = coroutine.resume(work, folders)
      if not ok then return say("%s", message) end -- an error of moth is one of Lua, and ends nothing but this
    until coroutine.status(work) == "dead" or not given.bang and vim.loop.hrtime() > stop
    if coroutine.status(work) ~= "dead" then vim.defer_fn(go_on, 1) end
  end
  vim.fn.mkdir(vim.fn.stdpath("data"), "p")
  go_on()
end

--- Says which classes the text is most like.
function M.classify(given)
  if not M.model then
    local ok, saved = pcall(moth.load, M.path())
    if not ok then return say("nothing is learned yet: :MothLearn") end
    M.model, M.names = network(#saved.names):eval(), saved.names
    M.model:load_state_dict(saved.model)
  end
  local lines = vim.api.nvim_buf_get_lines(0, given.line1 - 1, given.line2, false)
  local text, windows = table.concat(lines, "\n"), {}
  for first = 1, math.min(#text, 16 * WINDOW), WINDOW do
    windows[#windows + 1] = features(text:sub(first, first + WINDOW - 1))
  end
  if #windows == 0 then return say("there is no text") end
  local p, class = moth.inference_mode(function()
    return M.model(moth.stack(windows)):softmax(2):mean(1):topk(math.min(3, #M.names))
  end)
  local parts = {}
  for i = 1, class:size(1) do
    parts[i] = ("%s %.0f %%"):format(M.names[class[i]:item()], 100 * p[i]:item())
  end
  say("%s", table.concat(parts, ", "))
end

return M
