--- moth.tensorboard: event files that TensorBoard reads.
--
--     local w = moth.tensorboard.SummaryWriter("runs/mlp")
--     w:add_scalar("loss/train", loss:item(), step)
--     w:add_histogram("weights", layer.weight, step)
--     w:add_image("sample", image, step)
--     w:add_hparams({ lr = 0.1 }, { accuracy = 0.9 })     -- plugins.lua: figures, videos, sound, embeddings, …
--     w:close()
--
-- A file is a TFRecord sequence: length, masked CRC-32C of it, an Event message, its CRC. Records are written whole
-- and flushed after `flush_secs`, so that a killed run leaves a readable file.
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local system = require "moth.utils.system"
local crc = require "moth.tensorboard.crc32c"
local pb = require "moth.tensorboard.proto"
local B = require "moth_lua"
local each = require "moth.each"
local ops = B.ops

local M = {}

local Writer = class("SummaryWriter")
M.SummaryWriter = Writer

local count = 0

--- @tparam[opt] string log_dir the folder (made if missing); runs/<date>-<time> without it
-- @tparam[opt] table o flush_secs (120), filename_suffix ("")
Writer.__init = signature.init("SummaryWriter(path log_dir?, *, number flush_secs=120, string filename_suffix='')",
function(self, o)
  self.log_dir = o.log_dir or os.date("runs/%b%d_%H-%M-%S")
  if os.execute("mkdir -p " .. system.quoted(self.log_dir) .. " 2>/dev/null") ~= 0 then
    check.fail("SummaryWriter: cannot make the folder %s", self.log_dir)
  end
  count = count + 1
  self.path = ("%s/events.out.tfevents.%d.moth.%d.%d%s"):format(self.log_dir, os.time(), system.pid(), count,
    o.filename_suffix)
  local message
  self.file, message = io.open(self.path, "ab")
  if not self.file then check.fail("SummaryWriter: %s", message) end
  self.flush_secs, self.flushed, self.runs = o.flush_secs, system.now(), {} -- runs: those of add_scalars
  self:event(pb.bytes(3, "brain.Event:2"))
end)

local function record(data)
  local length = pb.fixed64(#data)
  return length .. pb.fixed32(crc.masked(length)) .. data .. pb.fixed32(crc.masked(data))
end

-- Writes an Event: time, step and the encoded `fields`.
function Writer:event(fields, step, walltime)
  if not self.file then check.fail("SummaryWriter: it is closed") end
  local data = pb.double(1, walltime or system.time()) .. (step and pb.int(2, step) or "") .. fields
  local ok, message = self.file:write(record(data))
  if not ok then check.fail("SummaryWriter: %s: %s", self.path, message) end
  if system.now() - self.flushed > self.flush_secs then self:flush() end
end

-- Defines a method whose first argument is the tag and whose last two are step and time.
local function add(text, fn)
  local name = text:match("^[%w_]+")
  --- Writes a value under a tag: a number (add_scalar), several (add_scalars), a histogram of a tensor, an image (C,
  -- H, W) or images (N, C, H, W), a text. global_step, walltime: as in PyTorch.
  Writer[name] = signature.method(text, function(self, tag, ...)
    if tag == "" then check.fail("[%s] the tag is empty", name) end
    return fn(self, tag, ...)
  end)
end

-- Writes a Summary of one value: its tag and the encoded fields of the Value.
function Writer:value(tag, fields, step, walltime)
  self:event(pb.bytes(5, pb.bytes(1, pb.bytes(1, tag) .. fields)), step, walltime)
end

--- A number, or a tensor of one element.
add("add_scalar(string tag, Tensor|number scalar_value, size global_step=0, number walltime?)",
function(self, tag, value, step, walltime)
  self:value(tag, pb.float(2, B.is_tensor(value) and tonumber(value:item()) or value), step, walltime)
end)

--- Several numbers of one chart: { train = 0.1, test = 0.2 }. Each key is a run of its own below the folder,
-- <main_tag>_<key>, with the tag main_tag: TensorBoard draws runs into one chart.
add("add_scalars(string main_tag, table tag_scalar_dict, size global_step=0, number walltime?)",
function(self, main_tag, values, step, walltime)
  local keys = {}
  for k in each(values) do keys[#keys + 1] = tostring(k) end
  table.sort(keys)
  for _, k in ipairs(keys) do
    local run = self.log_dir .. "/" .. main_tag:gsub("/", "_") .. "_" .. k
    self.runs[run] = self.runs[run] or Writer(run, { flush_secs = self.flush_secs })
    self.runs[run]:add_scalar(main_tag, values[k], step, walltime)
  end
end)

-- TensorBoard's bin edges: from 1e-12 growing by a tenth, mirrored; made once.
local borders
local function default_borders()
  if borders then return borders end
  local up, v = {}, 1e-12
  while v < 1e20 do
    up[#up + 1] = v
    v = v * 1.1
  end
  borders = {}
  for i = #up, 1, -1 do borders[#borders + 1] = -up[i] end
  borders[#borders + 1] = 0
  for i = 1, #up do borders[#borders + 1] = up[i] end
  borders[#borders + 1] = math.huge
  return borders
end

local function numbers(where, values)
  if B.is_tensor(values) then
    return B.totable(ops.flatten(ops.to(B.alias(values, false), { dtype = "float64", device = "cpu" })))
  end
  if type(values) ~= "table" then check.fail("%s: expected a tensor or a table of numbers, got %s", where,
    class.name(values)) end
  return values
end

--- A histogram of the values of a tensor (or table). Values that are not finite are left out.
-- @tparam[opt] int bins the number of bins, all of equal width; default: TensorBoard's exponential bins
add("add_histogram(string tag, Tensor|number[] values, size global_step=0, count bins?, number walltime?)",
function(self, tag, values, step, bins, walltime)
  local list, n, sum, squares, low, high = numbers("add_histogram", values), 0, 0, 0, math.huge, -math.huge
  for i = 1, #list do
    local v = list[i]
    if v - v == 0 then
      n, sum, squares = n + 1, sum + v, squares + v * v
      low, high = math.min(low, v), math.max(high, v)
    end
  end
  if n == 0 then check.fail("add_histogram: '%s' has no finite value", tag) end
  local limits
  if bins then
    limits = {}
    for i = 1, bins do limits[i] = i == bins and high or low + (high - low) * i / bins end
  else
    limits = default_borders()
  end
  local counts = {}
  for i = 1, #limits do counts[i] = 0 end
  for i = 1, #list do
    local v = list[i]
    if v - v == 0 then
      local a, b = 1, #limits -- bisection: the first edge that is not below v
      while a < b do
        local mid = math.floor((a + b) / 2)
        if limits[mid] < v then a = mid + 1 else b = mid end
      end
      counts[a] = counts[a] + 1
    end
  end
  local first, last = 1, #counts -- empty bins at the ends are left out, but for one in front
  while counts[first] == 0 do first = first + 1 end
  while counts[last] == 0 do last = last - 1 end
  first = math.max(1, first - 1)
  local edges, kept = {}, {}
  for i = first, last do
    edges[#edges + 1], kept[#kept + 1] = math.min(limits[i], 1.7976931348623157e308), counts[i]
  end
  self:value(tag, pb.bytes(5, pb.double(1, low) .. pb.double(2, high) .. pb.double(3, n) .. pb.double(4, sum)
    .. pb.double(5, squares) .. pb.doubles(6, edges) .. pb.doubles(7, kept)), step, walltime)
end)

-- A tensor of images with its dimensions in the order N, C, H, W, of those that `form` names.
local function ordered(where, t, form)
  if not form then return t end
  local order = {}
  for d in ("NCHW"):gmatch "." do
    local at = form:find(d, 1, true)
    if at then order[#order + 1] = at end
  end
  if #order ~= #form or B.dim(t) ~= #form or not form:find "H" or not form:find "W" then
    check.fail("[%s] dataformats '%s' does not fit a tensor of %d dimensions", where, form, B.dim(t))
  end
  return ops.permute(t, order)
end

--- An image: (C, H, W) or (H, W), of 1, 3 or 4 channels; floats in 0 to 1, uint8 in 0 to 255. dataformats: the order of
-- its dimensions, as "HWC".
add("add_image(string tag, Tensor img_tensor, size global_step=0, number walltime?, string dataformats?)",
function(self, tag, image, step, walltime, form)
  image = ordered("add_image", image, form)
  local png = require "moth.plot.png"
  local data, width, height, channels = png.encode(image)
  self:value(tag, pb.bytes(4, pb.int(1, height) .. pb.int(2, width) .. pb.int(3, channels) .. pb.bytes(4, data)),
    step, walltime)
end)

--- A batch (N, C, H, W) as one picture, `nrow` (8) in a row.
add("add_images(string tag, Tensor img_tensor, size global_step=0, count nrow=8, number walltime?, \z
  string dataformats?)", function(self, tag, images, step, nrow, walltime, form)
  images = ordered("add_images", images, form)
  self:add_image(tag, require("moth.plot").make_grid(images, { nrow = nrow }), step, walltime)
end)

--- Markdown.
add("add_text(string tag, string text_string, size global_step=0, number walltime?)",
function(self, tag, text, step, walltime)
  local tensor = pb.int(1, 7) .. pb.bytes(2, pb.bytes(2, pb.int(1, 1))) .. pb.bytes(8, text)
  local metadata = pb.bytes(1, pb.bytes(1, "text"))
  self:value(tag .. "/text_summary", pb.bytes(8, tensor) .. pb.bytes(9, metadata), step, walltime)
end)

require "moth.tensorboard.plugins"(Writer)

--- The ops that model(input, …) calls, as a graph: a node per op, parameters by their names.
function Writer:add_graph(model, ...)
  self:event(pb.bytes(4, require("moth.tensorboard.graph").define(model, ...)))
end

--- Flushes the file.
function Writer:flush()
  if self.file then self.file:flush() end
  for _, run in each(self.runs) do run:flush() end
  self.flushed = system.now()
end

--- Ends the file; more calls are errors.
function Writer:close()
  if self.file then self.file:close() end
  for _, run in each(self.runs) do run:close() end
  self.file = nil
end

return M
