--- Segmentation by a U-Net: each pixel of a noisy picture is nothing, part of a disc or part of a frame.
--
--     moth examples/unet_segmentation.lua [--steps 200] [--picture out.png] [--curve unet.svg] [--checkpoint unet.mth]
local moth = require "moth"
local training = require "moth.examples.training"
local shapes = require "moth.examples.shapes"
local o = training.options { steps = 200, batch = 8, channels = 8, lr = 5e-3, size = 32, picture = "" }
moth.manual_seed(1)

local model = moth.models.UNet { in_channels = 1, num_classes = 3, channels = o.channels, depth = 2 }
local opt = moth.optim.AdamW(model:parameters(), { lr = o.lr })
local ema = moth.optim.swa_utils.AveragedModel(model, { use_buffers = true,
  multi_avg_fn = moth.optim.swa_utils.get_ema_multi_avg_fn(0.9) })
training.run(o, { model = model, opt = opt, ema = ema }, function()
  local x, class = shapes.batch(o.batch, o.size, 0.3)
  opt:zero_grad()
  local loss = moth.nn.functional.cross_entropy(model(x), class)
  loss:backward()
  opt:step()
  ema:update_parameters(model)
  return loss:item()
end)

-- Intersection over union of each class, by the mean of the weights.
ema:eval()
local x, class = shapes.batch(32, o.size, 0.3)
local found = moth.no_grad(function() return ema(x):argmax(2) end)
local total = 0
for k, name in ipairs { "nothing", "disc", "frame" } do
  local both = found:eq(k):logical_and(class:eq(k)):sum():item()
  local any = found:eq(k):logical_or(class:eq(k)):sum():item()
  total = total + both / any
  print(("IoU of %-8s %.3f"):format(name, both / any))
end
print(("mean IoU %.3f"):format(total / 3))
if o.picture ~= "" then
  local rows = moth.cat({ x:narrow(1, 1, 8), (found:narrow(1, 1, 8):to(moth.float32) - 1):unsqueeze(2) / 2 }, 1)
  moth.plot.images(rows, { nrow = 8 }):save(o.picture)
end
