--- The line search of optim.LBFGS: a step along a direction that satisfies the strong Wolfe conditions (Nocedal and
-- Wright 2006, algorithms 3.5 and 3.6), in the form of PyTorch's.
local M = {}

-- The minimum of the cubic through two points with their slopes, within [least, most] (the interval of the points).
local function cubic(x1, f1, g1, x2, f2, g2, least, most)
  least, most = least or math.min(x1, x2), most or math.max(x1, x2)
  local d1 = g1 + g2 - 3 * (f1 - f2) / (x1 - x2)
  local square = d1 * d1 - g1 * g2
  if square < 0 or square ~= square then return (least + most) / 2 end
  local d2 = math.sqrt(square)
  local at = x1 <= x2 and x2 - (x2 - x1) * ((g2 + d2 - d1) / (g2 - g1 + 2 * d2))
    or x1 - (x1 - x2) * ((g1 + d2 - d1) / (g1 - g2 + 2 * d2))
  return math.min(math.max(at, least), most)
end

--- evaluate(t): the value there, its gradient (a tensor) and its slope along the direction. Value, gradient and slope
-- at 0; the first t; o: the largest element of the direction `norm`, tolerance_change, max_ls.
-- @return value, gradient, t, number of evaluations
function M.strong_wolfe(evaluate, f, g, slope, t, o)
  local c1, c2 = 1e-4, 0.9
  local f_new, g_new, slope_new = evaluate(t)
  local evals, tries, done = 1, 0, false
  local last = { t = 0, f = f, g = g, slope = slope }
  local ends -- the points of the bracket
  local function now() return { t = t, f = f_new, g = g_new, slope = slope_new } end
  while tries < o.max_ls do
    if f_new > f + c1 * t * slope or (tries > 1 and f_new >= last.f) then
      ends = { last, now() }
      break
    elseif math.abs(slope_new) <= -c2 * slope then
      return f_new, g_new, t, evals
    elseif slope_new >= 0 then
      ends = { last, now() }
      break
    end
    local point = now()
    t = cubic(last.t, last.f, last.slope, t, f_new, slope_new, t + 0.01 * (t - last.t), t * 10)
    last = point
    f_new, g_new, slope_new = evaluate(t)
    evals, tries = evals + 1, tries + 1
  end
  ends = ends or { { t = 0, f = f, g = g, slope = slope }, now() }
  local low, high = 1, 2
  if ends[1].f > ends[2].f then low, high = 2, 1 end
  local slow = false
  while not done and tries < o.max_ls do
    local a, b = ends[1], ends[2]
    if math.abs(b.t - a.t) * o.norm < o.tolerance_change then break end
    t = cubic(a.t, a.f, a.slope, b.t, b.f, b.slope)
    -- Near an end of the bracket twice, or outside: a tenth of it from that end.
    local least, most = math.min(a.t, b.t), math.max(a.t, b.t)
    local margin = 0.1 * (most - least)
    local near = math.min(most - t, t - least) < margin
    if near and (slow or t >= most or t <= least) then
      t = math.abs(t - most) < math.abs(t - least) and most - margin or least + margin
      slow = false
    else
      slow = near
    end
    f_new, g_new, slope_new = evaluate(t)
    evals, tries = evals + 1, tries + 1
    if f_new > f + c1 * t * slope or f_new >= ends[low].f then
      ends[high] = now()
      low, high = 1, 2
      if ends[1].f > ends[2].f then low, high = 2, 1 end
    else
      if math.abs(slope_new) <= -c2 * slope then
        done = true
      elseif slope_new * (ends[high].t - ends[low].t) >= 0 then
        ends[high] = ends[low]
      end
      ends[low] = now()
    end
  end
  return ends[low].f, ends[low].g, ends[low].t, evals
end

return M
