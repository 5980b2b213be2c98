-- Loss scaling, for moth.amp.GradScaler: ops on tensors, so that nothing waits for a device.
local function one(name)
  return { "equal(" .. name .. ".numel, 1)", name .. " must be a tensor of one element, got the shape {" .. name .. ".shape}" }
end

return {
{ "amp_unscale(Tensor[]! grads, Tensor inv_scale, Tensor! found_inf) -> ()",
  kind = "extern",
  dims = { grads = "* : float", inv_scale = "*Z : float", found_inf = "*F : float" },
  check = { one "inv_scale", one "found_inf" },
  grad = "none",
  reference = "amp_unscale",
  samples = {
    "{randn(3,4), randn(5)}, tensor(0.25), tensor(0)", "{randn(3,4), randn(2) * (1 / 0)}, tensor(0.5), tensor(0)",
    "{randn(7)}, tensor(0.5), tensor(1)", "{}, tensor(0.5), tensor(0)" },
  errors = {
    { "{randn(2)}, randn(2), tensor(0)", "one element" }, { "{randn(2)}, tensor(1), randn(2)", "one element" },
    { "{tensor({1}, {dtype=int64})}, tensor(1), tensor(0)", "float" } },
  doc = "Multiplies all gradients by inv_scale, in place; sets found_inf to 1 if an element of one is infinite or NaN, \z
    and leaves it alone otherwise." },
{ "amp_update_scale(Tensor! scale, Tensor! growth_tracker, Tensor found_inf, float growth_factor, float backoff_factor, int growth_interval) -> ()",
  kind = "extern",
  dims = { scale = "*S : float", growth_tracker = "*G : int", found_inf = "*F : float" },
  check = { one "scale", one "growth_tracker", one "found_inf" },
  grad = "none",
  reference = "amp_update_scale",
  samples = {
    "tensor(8.0), tensor(0, {dtype=int32}), tensor(0), 2, 0.5, 3", "tensor(8.0), tensor(2, {dtype=int32}), tensor(0), 2, 0.5, 3",
    "tensor(8.0), tensor(2, {dtype=int32}), tensor(1), 2, 0.5, 3" },
  errors = {
    { "randn(2), tensor(0, {dtype=int32}), tensor(0), 2, 0.5, 3", "one element" },
    { "tensor(8.0), tensor(0.0), tensor(0), 2, 0.5, 3", "int" } },
  doc = "The scale for the next step: times backoff_factor after a step that found an infinity, times growth_factor after \z
    growth_interval steps without one (unless that overflows). growth_tracker counts them." },
}
