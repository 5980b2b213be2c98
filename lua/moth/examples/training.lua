--- What the training examples share: options of the command line, progress, a curve of the loss as a picture, and a
-- checkpoint from which a run that was stopped goes on.
local moth = require "moth"
local each = require "moth.each"
local system = require "moth.utils.system"
local M = {}

--- The options of the command line, `--name value`, over defaults; numbers where the default is one. Every example
-- takes --steps, --curve FILE.svg (or .png), --checkpoint FILE; --help prints them. What is wrong ends the process.
-- help: { name = what it is }.
function M.options(defaults, help)
  local names, list = {}, {}
  for name in each(defaults) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do list[i] = { "--" .. name, help and help[name], defaults[name] } end
  list[#list + 1] = { "--curve FILE", "the loss as a picture, .svg or .png" }
  list[#list + 1] = { "--checkpoint FILE", "is written now and then; a run that was stopped goes on from it" }
  return moth.cli(list)
end

--- Calls step(i), which returns a loss, for each step; prints every tenth of them.
-- o: options; parts: { name = object with a state_dict }. Returns the first and the last tenth's mean loss.
function M.run(o, parts, step)
  local losses, from = {}, 1
  if o.checkpoint and system.exists(o.checkpoint) then
    local saved = moth.load(o.checkpoint)
    for name, part in each(parts) do part:load_state_dict(saved[name]) end
    moth.set_rng_state(saved.rng)
    losses, from = saved.losses, #saved.losses + 1
    print(("goes on from step %d of %s"):format(from - 1, o.checkpoint))
  end
  local every = math.max(1, math.floor(o.steps / 10))
  local function save()
    local all = { losses = losses, rng = moth.get_rng_state() }
    for name, part in each(parts) do all[name] = part:state_dict() end
    moth.save(all, o.checkpoint)
  end
  local function mean(first, last)
    local sum = 0
    for i = first, last do sum = sum + losses[i] end
    return sum / (last - first + 1)
  end
  local began = os.time()
  for i = from, o.steps do
    losses[i] = step(i)
    if i % every == 0 then
      print(("step %d of %d: loss %.4f, %d s"):format(i, o.steps, mean(i - every + 1, i), os.time() - began))
      if o.checkpoint then save() end
    end
  end
  if o.checkpoint then save() end
  if o.curve then
    local axes = { title = "training", xlabel = "step", ylabel = "loss" }
    moth.plot.lines({ { losses, label = "loss" } }, axes):save(o.curve)
    print("curve: " .. o.curve)
  end
  return mean(1, every), mean(o.steps - every + 1, o.steps)
end

return M
