--- Which part of a data set is asked for: split = "train" or "test" ("t10k"), or train = true or false.
local check = require "moth.utils.check"

local trains = { train = true, test = false, t10k = false }

--- Whether `o` (its split, its train) asks for the training part, as it does with neither.
return function(where, o)
  if o.split == nil then return o.train ~= false end
  if o.train ~= nil then check.fail("%s: give train or split, not both", where) end
  local train = trains[o.split]
  if train == nil then check.fail("%s: split must be \"train\" or \"test\", got %s", where, tostring(o.split)) end
  return train
end
