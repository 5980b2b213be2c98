--- moth.amp: mixed precision. Ops that gain from it run in float16 or bfloat16, the others in float32; parameters,
-- their gradients and the optimizer's state stay in float32. See docs/amp.md.
--
--     local scaler = moth.amp.GradScaler()                  -- float16 only: bfloat16 needs no scaling
--     local loss = moth.amp.autocast({ dtype = moth.float16 }, function() return criterion(net(x), y) end)
--     scaler:scale(loss):backward()
--     scaler:unscale_(optimizer)                            -- where gradients are clipped or looked at
--     nn.utils.clip_grad_norm_(net:parameters(), 1)
--     scaler:step(optimizer)
--     scaler:update()
local autocast = require "moth.amp.autocast"
local signature = require "moth.utils.signature"

local M = { autocast = autocast.autocast, custom_fwd = autocast.custom_fwd, custom_bwd = autocast.custom_bwd }
for _, name in ipairs({ "is_autocast_enabled", "get_autocast_dtype", "is_autocast_cache_enabled",
  "is_autocast_available", "is_bf16_supported" }) do
  M[name] = autocast[name]
end

--- The ops by their policies in autocast: { low = names of those that run in the lower dtype, high = in float32,
-- widest = in the widest dtype of their arguments }. All others run in the dtype of their arguments. Read from the
-- records of the op table.
M.lists = signature("amp.lists()", function()
  local ops = require "moth.dispatch.ops"
  local lists = { low = {}, high = {}, widest = {} }
  for _, name in ipairs(ops.list()) do
    local list = lists[ops.get(name).amp]
    if list then list[#list + 1] = name end
  end
  return lists
end)

local files = { GradScaler = "grad_scaler", gradient_report = { "underflow", "gradient_report" },
  set_debug = { "underflow", "set_debug" } }
return require("moth.lang.lazy")(M, "moth.amp.", files, "moth.amp")
