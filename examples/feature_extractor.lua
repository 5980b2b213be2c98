--- What a ResNet computes inside, without a change to the model: by a forward hook, by the parts of the model as a
-- feature extractor, and a picture of what a layer sees.
--
--     moth examples/feature_extractor.lua [--picture features.png]
local moth = require "moth"
local nn = moth.nn
moth.manual_seed(1)

local model = moth.models.resnet18():eval()
local image = moth.rand(1, 3, 64, 64)

-- Hooks: called with the module, its inputs and its output, until they are removed.
local seen, handles = {}, {}
for _, name in ipairs { "layer1", "layer2", "layer3", "layer4", "avgpool" } do
  handles[#handles + 1] = model:get_submodule(name):register_forward_hook(function(_, _, output)
    seen[name] = output:detach()
  end)
end
local logits = moth.no_grad(function() return model(image) end)
for _, handle in ipairs(handles) do handle:remove() end
for _, name in ipairs { "layer1", "layer2", "layer3", "layer4", "avgpool" } do
  print(("%-8s output %s"):format(name, tostring(seen[name]:size())))
end

-- The same by one call; the model is left as it was.
local features = nn.utils.create_feature_extractor(model, { layer2 = "edges", layer4 = "objects" })
local found = moth.no_grad(function() return features(image) end)
print("the extractor gives the same:", found.edges:equal(seen.layer2) and found.objects:equal(seen.layer4))
print("without hooks the model gives the same:", moth.no_grad(function() return model(image) end):equal(logits))

-- Activations that are changed: without one channel of layer3 the logits move.
local handle = model:get_submodule("layer3"):register_forward_hook(function(_, _, output)
  local changed = output:clone()
  changed:select(2, 1):zero_()
  return changed
end)
local moved = (moth.no_grad(function() return model(image) end) - logits):abs():amax():item()
handle:remove()
print("one channel set to 0 moves the logits:", moved > 0)

local picture = moth.cli({ { "--picture FILE", "what the first layer sees" } }).picture
if picture then
  local maps = seen.layer1:squeeze(1):unsqueeze(2) -- (64, 1, H, W)
  maps = maps / maps:amax({ 3, 4 }, true):clamp({ min = 1e-6 })
  moth.plot.images(maps, { nrow = 16 }):save(picture)
  print("written: " .. picture)
end
