--- Five expressions that broadcast by mistake. The rule: shapes are aligned at their last
-- dimension; a missing dimension, or one of size 1, is repeated. So no error is raised, and the result is wrong.
--
--     moth examples/broadcasting_bugs.lua
local moth = require "moth"
moth.manual_seed(0)

local function shape(t) return "(" .. table.concat(t:size(), ", ") .. ")" end
local function bug(title, wrong, right, rule)
  print(title)
  print(("   as written: %-10s as meant: %-10s\n   %s\n"):format(shape(wrong), shape(right), rule))
end

local prediction, target = moth.randn(4, 1), moth.randn(4)
bug("1. prediction (4, 1) - target (4): a loss of all pairs", prediction - target, prediction - target:unsqueeze(2),
  "(4, 1) and (1, 4) give (4, 4). Give both the same shape: prediction:squeeze(2) or target:unsqueeze(2).")
print(("   The mean square is %.4f instead of %.4f: training goes on, and learns the mean.\n"):format(
  (prediction - target):square():mean():item(), (prediction:squeeze(2) - target):square():mean():item()))

local x = moth.rand(3, 3)
bug("2. x / x:sum(2): rows are to add up to 1", x / x:sum(2), x / x:sum { dim = 2, keepdim = true },
  "(3) is aligned with the columns of (3, 3), not with its rows. Keep the dimension: sum{dim = 2, keepdim = true}.")
local rows = (x / x:sum(2)):sum(2)
print(("   The rows add up to %.3f, %.3f, %.3f. The shapes agree, so only the numbers tell.\n"):format(rows[1]:item(),
  rows[2]:item(), rows[3]:item()))

local batch, scale = moth.randn(8, 8), moth.arange(1, 9)
bug("3. batch (8, 8) * scale (8): one factor per sample", batch * scale, batch * scale:unsqueeze(2),
  "(8) is (1, 8): one factor per feature. It shows only when the batch is not as large as the width.")

local mask = moth.ones(5, 1, { dtype = moth.bool })
bug("4. moth.where(mask (5, 1), scores (5), 0)", moth.where(mask, moth.randn(5), 0),
  moth.where(mask:squeeze(2), moth.randn(5), 0),
  "where broadcasts all three: (5, 1) and (5) give (5, 5).")

local images, mean = moth.randn(2, 3, 3, 3), moth.randn(3)
bug("5. images (N, C, H, W) - mean (C)", images - mean, images - mean:view(3, 1, 1),
  "(3) is aligned with W. Here H = W = C, so that nothing is said; with other sizes moth raises:")
print("   " .. tostring(select(2, pcall(function() return moth.randn(2, 3, 8, 8) - mean end))))
