--- How transforms of samples are defined: parameters, a draw, and what is done with it to images, masks and boxes.
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local samples = require "moth.data.transforms.samples"
local signature = require "moth.utils.signature"

local M = {}

local random = math.random
--- A number from low to high.
function M.between(low, high) return low + (high - low) * random() end
--- A value as text.
local function text(v)
  if type(v) ~= "table" or getmetatable(v) then return B.is_tensor(v) and B.format(v) or tostring(v) end
  local parts = {}
  for k, value in ipairs(v) do parts[k] = text(value) end
  return "{" .. table.concat(parts, ", ") .. "}"
end
M.text = text

--- The numbers from 1 to n in a random order.
function M.shuffled(n)
  local order = {}
  for k = 1, n do order[k] = k end
  for k = n, 2, -1 do
    local j = random(1, k)
    order[k], order[j] = order[j], order[k]
  end
  return order
end

--- Checks the field p of a transform.
function M.probability(self)
  if self.p < 0 or self.p > 1 then
    check.fail("[transforms.%s] p must be from 0 to 1, got %g", self.__name, self.p)
  end
end

--- The field `key` as { low, high }, of a number n (from -n to n, or around 1) or of two.
function M.range(self, key, around)
  local v = self[key]
  if v == nil then return end
  if type(v) == "table" and #v == 1 then v = v[1] end
  if type(v) == "number" then
    if v < 0 then check.fail("[transforms.%s] %s must be at least 0, got %g", self.__name, key, v) end
    v = around and { math.max(around - v, 0), around + v } or { -v, v }
  end
  if #v ~= 2 or v[1] > v[2] then
    check.fail("[transforms.%s] %s is a number or { low, high }, got %s", self.__name, key, text(v))
  end
  self[key] = v
end

--- Checks that the field `key` is two numbers, from 0 on.
function M.two(self, key)
  local v = self[key]
  if #v ~= 2 or v[1] < 0 or v[2] < 0 then
    check.fail("[transforms.%s] %s is { low, high }, at least 0, got %s", self.__name, key, text(v))
  end
end

--- What an image or a mask is filled with.
function M.fill(self, kind)
  local fill = self.fill
  if kind == "image" then return fill end
  return self.mask_fill or type(fill) == "table" and fill[1] or fill
end

--- A class of transforms, in the table `into`. parameters: a signature's, shown: the fields that are printed.
-- how.init(self) prepares; how.draw(self, sample) gives what is drawn for a call, or nil, where it changes nothing;
-- how.image(self, planes, drawn, kind) gives planes or a list of them, how.boxes(self, boxes, drawn) new data, canvas
-- and format (nil: the old ones). how.mask: the same of masks; true: how.image does it. how.refuses: kinds that it does
-- not take.
function M.transform(into, Transform, name, parameters, shown, how)
  local T = class(name, Transform)
  T.__init = signature.init(("transforms.%s(%s)"):format(name, parameters), function(self, o)
    for key, value in each(o) do self[key] = value end
    if how.init then how.init(self) end
  end)
  local mask = how.mask == true and how.image or how.mask or nil
  local function call(self, n, ...)
    local sample = samples.open(name, nil, n, ...)
    for _, leaf in ipairs(how.refuses and sample.leaves or {}) do
      if how.refuses[leaf.kind] then
        check.fail("[transforms.%s] takes no %s", name, leaf.kind == "boxes" and "bounding boxes" or "masks")
      end
    end
    local drawn = true
    if how.draw then drawn = how.draw(self, sample) end
    if drawn == nil then return ... end
    for _, leaf in ipairs(sample.leaves) do
      if leaf.kind == "image" and how.image then
        leaf.result = samples.finish(leaf, how.image(self, leaf.planes, drawn, "image"))
      elseif leaf.kind == "mask" and mask then
        leaf.result = samples.finish(leaf, mask(self, leaf.planes, drawn, "mask"))
      elseif leaf.kind == "boxes" and how.boxes then
        local data, canvas, format = how.boxes(self, leaf.value, drawn)
        leaf.result = samples.like(leaf.value, data, canvas, format)
      end
    end
    return sample:results()
  end
  function T.__call(self, ...)
    return call(self, select("#", ...), ...)
  end
  function T.__tostring(self)
    local parts = {}
    for key in shown:gmatch "%S+" do parts[#parts + 1] = key .. "=" .. text(self[key]) end
    return name .. "(" .. table.concat(parts, ", ") .. ")"
  end
  into[name] = T
  return T
end

return M
