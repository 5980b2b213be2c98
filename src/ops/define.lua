-- Named expressions, for composites and derivatives: name = { "parameters", "expression" } (expr.lua), inlined where
-- they are called. Positions and dimensions count from 0; dim is a number, a list or none (all dimensions); shape is the
-- shape of the tensor whose gradient is computed.
return {
  -- ---- dtypes --------------------------------------------------------------------------------------
  -- The uint8 numbers of x, in the dtype that it is computed in.
  bytes_of = { "x, inverse, zero", "clamp(round(to(x, working(x)) * inverse) + zero, 0, 255)" },
  reciprocal_of = { "x", "when(is_number(x), 1 / as_number(x), reciprocal(x))" },
  as = { "x, dtype", "when(equal(x.dtype, dtype), x, to(x, dtype))" },
  -- y, computed from x in its working dtype (in which squares of halves fit), in x's own dtype.
  narrowed = { "y, x", "when(equal(working(x), x.dtype), y, as(y, x.dtype))" },

  -- ---- shapes of results ---------------------------------------------------------------------------
  inexact = { "x", "either(is_float(x), is_complex(x))" },
  summed = { "x, dtype", 'when(given(dtype), dtype, when(inexact(x), x.dtype, dtype_named("int64")))' },
  -- x's shape with size n in dimension d; that of a 0-dim tensor as it is.
  with_size = { "x, d, n", "when(equal(x.ndim, 0), x.shape, replace(x.shape, d, n))" },
  -- The shape of a gradient that bit i of need asks for; of the others nothing is computed.
  needed = { "need, i, shape", "when(bit(need, i), shape, list(0))" },
  loss_shape = { "target, reduction", 'when(eq(reduction, "none"), target.shape, first_n(target.shape, 0))' },
  -- ---- optimizer steps -----------------------------------------------------------------------------
  step_grad = { "grad, grad_scale, maximize", [[
    local scaled = when(given(grad_scale), grad * grad_scale, grad)
    return when(maximize, neg(scaled), scaled)]] },
  -- Means of Adam and the direction of LAMB: m, v, d.
  lamb_direction = { "param, grad, exp_avg, exp_avg_sq, beta1, beta2, eps, weight_decay, step, maximize, grad_scale", [[
    local g = step_grad(grad, grad_scale, maximize)
    local t = as_number(step)
    local m = exp_avg + (g - exp_avg) * (1 - beta1)
    local v = exp_avg_sq * beta2 + g * g * (1 - beta2)
    local root = sqrt(v) / power_of(1 - power_of(beta2, t), 0.5) + eps
    return m, v, m / root / (1 - power_of(beta1, t)) + param * weight_decay]] },
  -- The new value, unless a gradient overflowed.
  unless_found = { "found_inf, old, new", [[
    local found = when(given(found_inf), ne(found_inf, 0), none)
    return when(given(found_inf), where(found, old, new), new)]] },

  adaptive = { "asked, size", "when(lt(asked, 0), size, asked)" },

  -- ---- tensors made beside others: of their dtype if none is given, on their device ----------------
  zeros_of = { "like, shape, dtype", "beside(like, zeros(shape, default_to(dtype, like.dtype), like.device))" },
  -- Zeros that are only read, by an op that copies them: one, expanded.
  nothing_of = { "like, shape", "expand(zeros_of(like, ones_n(length(shape)), none), shape)" },
  full_of = { "like, shape, value, dtype",
    "beside(like, full(shape, value, default_to(dtype, like.dtype), like.device))" },
  arange_of = { "like, start, stop, dtype",
    'beside(like, arange(start, stop, 1, default_to(dtype, dtype_named("int64")), like.device))' },

  -- ---- complex numbers -----------------------------------------------------------------------------
  -- The part of grad that turns self about 0, by its absolute value; nothing at 0.
  -- With real and imaginary parts beside each other, as view_as_complex wants them.
  paired = { "x", "when(is_contiguous(x), x, clone(x))" },
  sgn_backward = { "grad, x", [[
    local size = abs(x)
    local safe = masked_fill(size, eq(size, 0), 1)
    local y = x / safe
    local g = grad / safe
    return when(is_complex(x), masked_fill(g - y * real(conj(y) * g), eq(size, 0), 0), zeros_like(grad))]] },
  angle_backward = { "grad, x", [[
    local a, b = op.real(x), when(is_complex(x), imag(x), x)
    local s = a * a + b * b
    local g = grad / masked_fill(s, eq(s, 0), 1)
    return when(is_complex(x), complex(neg(g * b), g * a), zeros_like(grad))]] },

  -- ---- Fourier transforms ----------------------------------------------------------------------------
  fft_r2c_backward = { "grad, shape, dim, scale", [[
    local d = dim[-1]
    local rest = zeros_of(grad, replace(grad.shape, d, shape[d] - grad.shape[d]), none)
    return op.real(native_fft_c2c(cat(tensors(grad, rest), d), dim, scale, 1))]] },
  -- Elements whose conjugates are left out count twice.
  fft_c2r_backward = { "grad, dim, scale", [[
    local d = dim[-1]
    local n = grad.shape[d]
    local g = native_fft_r2c(grad, dim, scale)
    local k = along(g, d)
    local once = logical_or(eq(k, 0), eq(k * 2, n))
    return g * where(once, 1, 2)]] },

  -- ---- powers --------------------------------------------------------------------------------------
  power = { "x, p", "when(equal(p, 0.5), sqrt(x), pow(x, p))" },
  -- x to the power of p, with the derivative 0 where x is 0, not infinity (whose product with the next derivative, 0,
  -- would be NaN).
  flat_power = { "x, p", [[
    local zero = eq(x, 0)
    return when(both(both(lt(p, 1), negate(equal(p, 0))), records(x)),
      masked_fill(power(masked_fill(x, zero, 1), p), zero, when(lt(p, 0), inf, 0)), power(x, p))]] },

  -- ---- losses --------------------------------------------------------------------------------------
  reduced = { "loss, reduction",
    [[when(eq(reduction, "mean"), mean(loss), when(eq(reduction, "sum"), sum(loss), loss))]] },
  -- Of integers, too.
  smooth_l1 = { "x, y, beta, scale", [[
    local both_float = both(is_float(x), is_float(y))
    local z = x - y
    return when(both_float, native_smooth_l1(x, y, beta, scale), native_smooth_l1(z, zeros_of(z, list(), none), beta, scale))]] },
  smooth_l1_double = { "grad, x, y, beta, scale",
    "when(equal(as_number(beta), 0), zeros_like(grad), masked_fill(grad * (as_number(scale) / as_number(beta)), ge(abs(x - y), beta), 0))" },
  -- log(x), not below -100. The argument is clamped at exp(-102), not 0: the derivative infinity times 0 would be NaN.
  bounded_log = { "x", "clamp(log(clamp(x, 5.0345753587649823e-45, none)), -100, none)" },

  -- ---- one dimension as two ------------------------------------------------------------------------
  image = { "x", "unsqueeze(x, -2)" },
  smaller = { "a, b", "when(le(a, b), a, b)" },
  larger = { "a, b", "when(ge(a, b), a, b)" },

  -- x with its last `shift` elements along dim in front of the others.
  rolled = { "x, dim, shift", [[
    local n = x.shape[dim]
    local first = remainder(shift, n)
    return when(equal(n, 0), clone(x), cat(tensors(narrow(x, dim, n - first, first), narrow(x, dim, 0, n - first)), dim))]] },
  -- x in `n` elements along dim, each between the two next to its source coordinate.
  interpolated = { "x, dim, n, corners", [[
    local size = x.shape[dim]
    local stride = when(corners, when(gt(n, 1), (size - 1) / (n - 1), 0), size / n)
    local source = arange_of(x, 0, n, dtype_named("float64")) * stride + when(corners, 0, stride * 0.5 - 0.5)
    local inside = clamp(source, 0, size - 1)
    local below = floor(inside)
    local part, i = inside - below, as(below, dtype_named("int64"))
    local j = clamp(i + 1, none, size - 1)
    return resampled(x, dim, stack(tensors(i, j), 1), as(stack(tensors(1 - part, part), 1), x.dtype))]] },
  -- Element i along dim is the sum of the elements places[i, k] times weights[i, k].
  resampled = { "x, dim, places, weights", [[
    local matrices = list(product(first_n(x.shape, dim)), x.shape[dim], product(drop_n(x.shape, dim + 1)))
    local y = native_resample(reshape(x, matrices), places, weights, 0)
    return reshape(y, replace(x.shape, dim, places.shape[0]))]] },

  -- Positions along dim, in a shape that broadcasts with x.
  along = { "x, dim", "view(arange_of(x, 0, x.shape[dim], none), replace(ones_n(x.ndim), dim, x.shape[dim]))" },
  -- The last position so far at which x is what the running extreme became.
  last_hits = { "x, extreme, dim", [[
    local hit = when(is_float(x), logical_or(eq(x, extreme), isnan(x)), eq(x, extreme))
    return native_running_max(where(hit, along(x, dim), 0), dim)]] },
  -- An offset of a slice, within 0 and n; a negative one counts from the end.
  offset_in = { "i, n, other",
    "when(given(i), when(lt(i, 0), larger(i + n, 0), smaller(i, n)), other)" },
  -- The areas between neighbours of y along dim, at places x or dx apart.
  trapezoids = { "given_y, given_x, dx, dim", [[
    local y = when(inexact(given_y), as(given_y, working(given_y)), to(given_y, default_dtype()))
    local n = y.shape[dim]
    local m, first = larger(n - 1, 0), smaller(n, 1)
    local x = when(given(given_x), as(given_x, when(inexact(given_x), working(given_x), y.dtype)), y)
    local size = when(equal(x.ndim, 1), replace(ones_n(y.ndim), dim, x.numel), join(ones_n(y.ndim - x.ndim), x.shape))
    local places = reshape(x, size)
    local k = places.shape[dim]
    local steps = narrow(places, dim, smaller(k, 1), larger(k - 1, 0)) - narrow(places, dim, 0, larger(k - 1, 0))
    local sums = narrow(y, dim, 0, m) + narrow(y, dim, first, m)
    return when(given(given_x), sums * steps, sums * dx) * 0.5]] },
  -- The quantiles of self along dim, or of all: rank q (n - 1) among the n sorted elements. nan: those that are not NaN.
  quantile_of = { "self, q, dim, keepdim, interpolation, nan", [[
    local x = when(both(given(dim), gt(self.ndim, 0)), movedim(self, when(given(dim), dim, 0), -1), reshape(self, list(self.numel)))
    local values, positions = sort(detach(x), -1, false, 0)
    local n = values.shape[-1]
    local many = both(negate(is_number(q)), gt(q.ndim, 0))
    local points = when(is_number(q), full_of(self, list(1), as_number(q), none), reshape(as(q, self.dtype), list(q.numel)))
    -- NaN stands behind the numbers
    local ranks = when(nan, clamp(points * (as(sum(logical_not(isnan(values)), list(-1), true), values.dtype) - 1), 0, none),
      where(isnan(narrow(values, -1, n - 1, 1)), n - 1, points * (n - 1)))
    local at = expand(clamp(detach(ranks), 0, n - 1), join(first_n(x.shape, x.ndim - 1), list(points.numel)))
    local rank = when(eq(interpolation, "lower"), floor(at), when(eq(interpolation, "higher"), ceil(at),
      when(eq(interpolation, "nearest"), round(at), at)))
    local low = floor(rank)
    -- read from x: their derivative does not go through the sorting
    local both_sides = to(cat(tensors(low, ceil(rank)), -1), dtype_named("int64"))
    local found = gather(x, -1, gather(positions, -1, both_sides, 0), 0)
    local below = narrow(found, -1, 0, points.numel)
    local above = narrow(found, -1, points.numel, points.numel)
    local between = when(eq(interpolation, "linear"), lerp(below, above, ranks - low),
      when(eq(interpolation, "midpoint"), lerp(below, above, 0.5), below))
    local size = when(keepdim, when(both(given(dim), gt(self.ndim, 0)), replace(self.shape, when(given(dim), dim, 0), 1), ones_n(self.ndim)),
      first_n(x.shape, x.ndim - 1))
    return reshape(movedim(between, -1, 0), when(many, join(list(points.numel), size), size))]] },

  -- searchsorted: how many of the table (rows of it: of the same row) are before, each bit, from the top.
  searched = { "s, input, upper, index_base", [[
    local n, rows = s.shape[-1], product(first_n(s.shape, s.ndim - 1))
    local table, wanted = reshape(s, list(rows, n)), reshape(input, list(rows, when(equal(s.ndim, 1), input.numel, input.shape[-1])))
    local steps = doublings(n + 1)
    local start = zeros_of(s, wanted.shape, dtype_named("int64"))
    local found = when(equal(n, 0), start, fold(start, steps, function(p, k)
      local next = p + power_of(2, steps - 1 - k)
      local there = gather(table, 1, clamp(next, none, n) - 1, 0)
      local over = when(upper, gt(there, wanted), ge(there, wanted))
      local beyond = when(is_float(s), logical_or(over, logical_and(isnan(there), eq(wanted, wanted))), over)
      return where(logical_or(beyond, gt(next, n)), p, next)
    end))
    return reshape(found + index_base, input.shape)]] },

  -- ---- sums and reductions -------------------------------------------------------------------------
  scale = { "x, k", "when(equal(k, 1), x, x * k)" },
  -- ---- distances -----------------------------------------------------------------------------------
  -- The derivative of the distances `dist` of the rows of x and y by x, from the differences of all pairs.
  distance_slopes = { "grad, x, y, p, dist", [[
    local d = unsqueeze(x, x.ndim - 1) - unsqueeze(y, x.ndim - 2)
    local n, zero, same = dist.ndim, eq(dist, 0), eq(d, 0)
    local far = masked_fill(dist, zero, 1)
    local weight = unsqueeze(masked_fill(grad / when(equal(p, 2), far, pow(far, p - 1)), zero, 0), n)
    local each = unsqueeze(grad, n) * sign(d)
    local top = each * eq(abs(d), unsqueeze(dist, n))
    local general = weight * sign(d) * pow(masked_fill(abs(d), same, 1), p - 1)
    local slopes = when(equal(p, 2), weight * d, when(equal(p, 1), each, when(equal(p, inf), top, general)))
    return when(equal(p, 0), zeros_like(x), sum(slopes, list(x.ndim - 1)))]] },
  cdist_backward = { "grad, x, y, p, dist", [[
    return when(either(records(grad), either(records(x), records(y))), distance_slopes(grad, x, y, p, dist),
      native_cdist_backward(grad, x, y, p, dist))]] },
  above_diagonal = { "x", "triu(full_of(x, list(x.shape[0], x.shape[0]), 1, dtype_named('bool')), 1)" },
  -- What belongs to pairs of rows, as a symmetric matrix.
  of_pairs = { "pairs, x", [[
    local m = masked_scatter(zeros_of(pairs, list(x.shape[0], x.shape[0]), none), above_diagonal(x), pairs)
    return m + t(m)]] },
  pdist_backward = { "grad, self, p, dist", [[
    return when(either(records(grad), records(self)),
      distance_slopes(of_pairs(grad, self), self, self, p, of_pairs(dist, self)),
      native_pdist_backward(grad, self, p, dist))]] },
  -- ---- images at places ----------------------------------------------------------------------------
  place_of = { "grad, k", "unsqueeze(select(grad, grad.ndim - 1, k), 1)" }, -- one coordinate, for all channels
  grid_moved = { "u, input, grid, mode, padding, corners, a, b, c", [[
    local x = place_of(u, 0) * native_grid_sample(input, grid, mode, padding, corners, a + 1, b, c)
    local xy = x + place_of(u, 1) * native_grid_sample(input, grid, mode, padding, corners, a, b + 1, c)
    return when(equal(grid.shape[-1], 2), xy, xy + place_of(u, grid.shape[-1] - 1) *
      native_grid_sample(input, grid, mode, padding, corners, a, b, c + 1))]] },
  grid_moved_input = { "u, g, grid, size, mode, padding, corners, a, b, c", [[
    local x = native_grid_sample_input(g * place_of(u, 0), grid, size, mode, padding, corners, a + 1, b, c)
    local xy = x + native_grid_sample_input(g * place_of(u, 1), grid, size, mode, padding, corners, a, b + 1, c)
    return when(equal(grid.shape[-1], 2), xy, xy +
      native_grid_sample_input(g * place_of(u, grid.shape[-1] - 1), grid, size, mode, padding, corners, a, b, c + 1))]] },
  grid_moved_places = { "u, g, input, grid, mode, padding, corners, a, b, c", [[
    local x = native_grid_sample_places(g * place_of(u, 0), input, grid, mode, padding, corners, a + 1, b, c)
    local xy = x + native_grid_sample_places(g * place_of(u, 1), input, grid, mode, padding, corners, a, b + 1, c)
    return when(equal(grid.shape[-1], 2), xy, xy +
      native_grid_sample_places(g * place_of(u, grid.shape[-1] - 1), input, grid, mode, padding, corners, a, b, c + 1))]] },

  -- To the rows where the largest elements are, but of empty bags.
  bag_max_backward = { "grad, weight, starts, rows, n, base", [[
    local end_ = full_of(starts, list(1), n + base, none)
    local ends = cat(tensors(narrow(starts, 0, smaller(starts.numel, 1), starts.numel - smaller(starts.numel, 1)), end_), 0)
    local is_full = unsqueeze(gt(narrow(ends, 0, 0, starts.numel), starts), 1)
    return scatter_add(nothing_of(grad, weight.shape), 0, rows, where(is_full, grad, 0), base)]] },
  sum_over = { "x, dims", "when(equal(length(dims), 0), x, sum(x, dims))" }, -- of no dimension none
  sum_keep = { "x, dim", "sum(x, list(dim), true)" },
  -- x with the dimensions that a reduction of `shape` over dim removed restored as 1.
  unreduced = { "x, shape, dim, keepdim",
    "when(either(keepdim, equal(length(shape), 0)), x, reshape(x, kept(shape, dim)))" },
  reduce_expand = { "grad, shape, dim, keepdim", "expand(unreduced(grad, shape, dim, keepdim), shape)" },
  -- 0 where all is 0.
  norm2_backward = { "grad, self, result, dim, keepdim", [[
    local zero = eq(result, 0)
    return self * unreduced(masked_fill(grad / masked_fill(result, zero, 1), zero, 0), self.shape, dim, keepdim)]] },
  glu_backward = { "grad, self, dim", [[
    local half = floor_divide(self.shape[dim], 2)
    local x, gate = narrow(self, dim, 0, half), narrow(self, dim, half, half)
    return cat(tensors(native_gated(grad, gate), native_gated_backward(grad, x, gate)), dim)]] },
  -- The first or second coordinates of pairs, of the last dimension.
  rope_half = { "x, which, interleaved", [[
    local d = x.ndim - 1
    local half = floor_divide(x.shape[d], 2)
    local pairs = reshape(x, join(replace(x.shape, d, half), list(2)))
    return when(interleaved, select(pairs, x.ndim, which), narrow(x, d, which * half, half))]] },
  rope_angle_grad = { "first, second, self, angle, interleaved", [[
    local g = first * rope_half(self, 0, interleaved) + second * rope_half(self, 1, interleaved)
    return to(sum_to(g, angle.shape), angle.dtype)]] },
  mean_backward = { "grad, shape, dim, keepdim",
    "reduce_expand(grad * (grad.numel / product(shape)), shape, dim, keepdim)" },
  amax_backward = { "grad, self, result, dim, keepdim", [[
    local g, top = unreduced(grad, self.shape, dim, keepdim), unreduced(result, self.shape, dim, keepdim)
    local same = eq(self, top)
    return where(same, g / sum(same, dim, true), 0)]] },
  logsumexp_backward = { "grad, self, result, dim, keepdim", [[
    local top = unreduced(result, self.shape, dim, keepdim)
    return exp(self - top) * unreduced(grad, self.shape, dim, keepdim)]] },
  var_backward = { "grad, self, dim, correction, keepdim", [[
    local n = self.numel / when(equal(grad.numel, 0), 1, grad.numel)
    local centred = self - mean(self, dim, true)
    return centred * (2 / (n - correction)) * unreduced(grad, self.shape, dim, keepdim)]] },
  -- max_dim, min_dim and others: scatters grad to the positions of the values.
  index_backward = { "grad, shape, dim, index, keepdim, index_base", [[
    local g, i = unreduced(grad, shape, dim, keepdim), unreduced(index, shape, dim, keepdim)
    return when(equal(length(shape), 0), clone(g), scatter(nothing_of(grad, shape), dim, i, g, index_base))]] },
  -- The sum over j >= k of grad[j] times the product of the elements up to j but element k: of those before k, times
  -- h[k] = grad[k] + self[k + 1] h[k + 1], by doubling the distances that h has seen. Products alone: differentiable.
  cumprod_slopes = { "grad, self, dim", [[
    local x, g = atleast_1d(self), atleast_1d(grad)
    local n = x.shape[dim]
    local first = narrow(x, dim, 0, smaller(n, 1))
    local next = cat(tensors(narrow(x, dim, smaller(n, 1), n - smaller(n, 1)), first), dim) -- the last one is not used
    local both = fold(cat(tensors(unsqueeze(next, 0), unsqueeze(g, 0)), 0), doublings(n), function(y, k)
      local s = power_of(2, k)
      local a, h = select(y, 0, 0), select(y, 0, 1)
      local a0, a1 = narrow(a, dim, 0, n - s), narrow(a, dim, s, n - s)
      local h0, h1 = narrow(h, dim, 0, n - s), narrow(h, dim, s, n - s)
      local far_a, far_h = narrow(a, dim, n - s, s), narrow(h, dim, n - s, s)
      return cat(tensors(unsqueeze(cat(tensors(a0 * a1, far_a), dim), 0), unsqueeze(cat(tensors(h0 + a0 * h1, far_h), dim), 0)), 0)
    end)
    local before = cat(tensors(full_of(x, first.shape, 1, none), narrow(cumprod(x, dim), dim, 0, n - smaller(n, 1))), dim)
    return reshape(before * select(both, 0, 1), self.shape)]] },
  cumprod_backward = { "grad, self, dim",
    "when(either(records(grad), records(self)), cumprod_slopes(grad, self, dim), native_cumprod_backward(grad, self, dim))" },
  cumsum_backward = { "grad, dim", "flip(cumsum(flip(grad, list(dim)), dim), list(dim))" },

  -- The products of all but one element along dims, for each: of those before it times those behind it. Made of
  -- products alone, it has derivatives where elements are 0, too.
  products_of_others = { "self, dims", [[
    local rest = others(self.ndim, dims)
    local order, lead = join(rest, others(self.ndim, rest)), length(rest)
    local x = permute(self, order)
    local rows = reshape(x, join(first_n(x.shape, lead), list(product(drop_n(x.shape, lead)))))
    local before = cumprod(pad(rows, list(1, -1), "constant", 1), -1)
    local behind = flip(cumprod(pad(flip(rows, list(-1)), list(1, -1), "constant", 1), -1), list(-1))
    return permute(reshape(before * behind, x.shape), inverse(order))]] },
  -- grad times the product of the others: by division, and by counting zeros; where it is to be differentiated again,
  -- without either.
  prod_backward = { "grad, self, dim, keepdim", [[
    local g, zero = unreduced(grad, self.shape, dim, keepdim), eq(self, 0)
    local ones = masked_fill(self, zero, 1)
    local quotient = prod(ones, dim, true) / ones -- the product of the others that are not zero
    local zeros_too = ne(sum(zero, dim, true) - zero, 0) -- others are
    return when(both(records(self), both(gt(self.ndim, 0), gt(self.numel, 0))), products_of_others(self, dim) * g,
      masked_fill(quotient, zeros_too, 0) * g)]] },

  pow_backward_self = { "grad, self, exponent", [[
    local k = as_number(exponent)
    return when(is_number(exponent),
      when(equal(k, 0), zeros_like(grad),
        when(equal(k, 1), grad, when(equal(k, 2), grad * self * 2, pow(self, k - 1) * k * grad))),
      masked_fill(pow(self, exponent - 1) * exponent, eq(exponent, 0), 0) * grad)]] },
  -- grad * result * log(self), 0 where self is 0 and exponent >= 0
  pow_backward_exponent = { "grad, self, exponent, result", [[
    local k = as_number(self)
    return when(is_number(self),
      when(equal(k, 0), masked_fill(grad * result * -inf, ge(op.real(exponent), 0), 0), grad * result * log_of(k)),
      masked_fill(log(when(is_complex(result), as(self, result.dtype), self)) * result,
        logical_and(eq(self, 0), ge(op.real(exponent), 0)), 0) * grad)]] },

  -- grad times log(other), 0 where self is 0 and the logarithm is not finite, or NaN.
  xlogy_backward_self = { "grad, self, other", [[
    local g = xlogy(grad, other)
    return when(is_number(other), when(le(as_number(other), 0), masked_fill(g, eq(self, 0), 0), g),
      masked_fill(g, logical_and(eq(self, 0), le(other, 0)), 0))]] },
  xlog1py_backward_self = { "grad, self, other", [[
    local g = special_xlog1py(grad, other)
    return when(is_number(other), when(le(as_number(other), -1), masked_fill(g, eq(self, 0), 0), g),
      masked_fill(g, logical_and(eq(self, 0), le(other, -1)), 0))]] },
  zeta_backward = { "grad, self, other", [[
    local k = as_number(self)
    return grad * when(is_number(self), special_zeta(k + 1, other) * (0 - k), neg(self * special_zeta(self + 1, other)))]] },
  -- y - result / self, and `limit` where self is near 0.
  over_self = { "y, self, result, limit", [[
    local near = le(abs(self), eps_of(self))
    return where(near, limit, y - result / masked_fill(self, near, 1))]] },

  element = { "x, dim, i, keepdim", "when(keepdim, narrow(x, dim, i, 1), select(x, dim, i))" },
  transposed_size = { "n, kernel, stride, padding, output_padding, dilation",
    "(n - 1) * stride + dilation * (kernel - 1) + 1 - padding * 2 + output_padding" },

  -- ---- views and indices ---------------------------------------------------------------------------
  permute_backward = { "grad, dims", "permute(grad, inverse(dims))" },
  diagonal_backward = { "grad, shape, offset, dim1, dim2",
    "written(zeros_of(grad, shape, none), function(w) return diagonal(w, offset, dim1, dim2) end, grad)" },
  -- Where elements of the base share a place, each has its share of the gradient of that place: what made them share
  -- it adds them up.
  as_strided_grad = { "grad, base_size, base_stride, base_offset, size, stride, offset", [[
    local at = default_to(offset, base_offset)
    local whole = as_strided_backward(grad, base_size, base_stride, base_offset, size, stride, at)
    local ones = full_of(grad, base_size, 1, none)
    return when(overlaps(base_size, base_stride),
      whole / as_strided_backward(ones, base_size, base_stride, base_offset, base_size, base_stride, base_offset), whole)]] },
  -- The derivative of adding is reading: a dense copy into the base's geometry, viewed again.
  as_strided_backward_grad = { "grad, base_size, base_stride, base_offset, size, stride, offset", [[
    local n = larger(reach(size, stride, offset), reach(base_size, base_stride, base_offset))
    local function base(w) return as_strided(w, base_size, base_stride, base_offset) end
    return clone(as_strided(written(zeros_of(grad, list(n), none), base, grad), size, stride, offset))]] },
  masked_scatter_backward = { "grad, mask, shape", [[
    local picked = masked_select(grad, mask)
    local function first(w) return narrow(w, 0, 0, picked.numel) end
    return reshape(written(zeros_of(grad, list(product(shape)), none), first, picked), shape)]] },
  gather_backward = { "grad, shape, dim, index, index_base",
    "scatter_add(nothing_of(grad, shape), dim, index, grad, index_base)" },
  index_select_backward = { "grad, shape, dim, index, index_base",
    "index_add(nothing_of(grad, shape), dim, index, grad, index_base)" },
  index_fill_zero = { "grad, dim, index, index_base",
    "index_copy(grad, dim, index, zeros_like(index_select(grad, dim, index, index_base)), index_base)" },
  gather_nd_backward = { "grad, shape, dims, index, index_base",
    "scatter_nd_(zeros_of(grad, shape, none), dims, index, grad, true, index_base)" },
  scatter_nd_zero = { "grad, dims, index, accumulate, index_base", [[
    local zero = zeros_of(grad, first_n(grad.shape, 0), none)
    return when(accumulate, grad, scatter_nd_(clone(grad), dims, index, zero, false, index_base))]] },
  masked_select_backward = { "grad, shape, mask",
    "sum_to(masked_scatter(zeros_of(grad, wide(shape, mask.shape), none), mask, grad), shape)" },
  -- Sparse matrices by rows. The row of each of n elements, from 0: how many rows begin behind the first and not after it.
  sparse_rows = { "crow, n, index_base", [[
    local rows = crow.shape[0] - 1
    local starts = narrow(crow, 0, smaller(rows, 1), larger(rows - 1, 0))
    local ones = full_of(crow, starts.shape, 1, dtype_named("int64"))
    local marks = index_add(zeros_of(crow, list(n + 1), dtype_named("int64")), 0, starts, ones, index_base)
    return narrow(cumsum(marks, 0), 0, 0, n)]] },
  -- The product of the transposed matrix, which has n rows, and x: sorted by columns here, if that is not given.
  sparse_transposed_mm = { "crow, cols, values, x, n, t_crow, t_cols, order, index_base", [[
    local by_column = argsort(cols, 0, false, 0)
    local sorted = index_select(cols, 0, by_column, 0)
    local starts = searchsorted(sorted, arange_of(cols, index_base, n + 1 + index_base, none), false, false, none, none, index_base)
    local rows = index_select(sparse_rows(crow, cols.shape[0], index_base), 0, by_column, 0) + index_base
    return when(given(t_crow),
      native_sparse_mm(t_crow, t_cols, index_select(values, 0, order, index_base), x, none, none, none, index_base),
      native_sparse_mm(starts, rows, index_select(values, 0, by_column, 0), x, none, none, none, index_base))]] },
  -- sort and topk: scatters grad to the positions of the values
  scatter_back = { "grad, shape, dim, index, index_base",
    "when(equal(grad.ndim, 0), grad, scatter(nothing_of(grad, shape), dim, index, grad, index_base))" },

  diagonal_of = { "x, offset", "op.diagonal(x, offset, 0, 1)" },

  -- ---- scatter_reduce: what lies along dim of one line alone meets in one place ----------------------
  -- y in place of self where nothing of self shall count.
  only_given = { "self, dim, index, include_self, y, index_base",
    "when(include_self, self, scatter(self, dim, index, y, index_base))" },
  narrowed_to = { "x, shape", [[
    return when(same_list(x.shape, shape), x,
      fold(x, length(shape), function(y, k) return narrow(y, k, 0, shape[k]) end))]] },
  -- Zeros of a shape, with g at the beginning of each dimension.
  cornered = { "grad, shape, size, g",
    "written(zeros_of(grad, shape, none), function(w) return as_strided(w, size, w.stride) end, g)" },
  scatter_src_backward = { "grad, shape, dim, index, index_base", [[
    local g = gather(grad, dim, index, index_base)
    return when(same_list(shape, index.shape), g, cornered(grad, shape, index.shape, g))]] },
  -- The largest (smallest) of src wins by being written last.
  scattered_extreme = { "self, dim, index, src, largest_, include_self, index_base", [[
    local x = narrowed_to(src, index.shape)
    local key = when(both(is_float(x), negate(largest_)), masked_fill(x, isnan(x), -inf), x)
    local values, order = sort(key, dim, negate(largest_), 0)
    local best = scatter(self, dim, gather(index, dim, order, 0), gather(x, dim, order, 0), index_base)
    local there = scatter(zeros_of(self, self.shape, dtype_named("bool")), dim, index, 1, index_base)
    local with_self = when(largest_, maximum(self, best), minimum(self, best))
    return where(there, when(include_self, with_self, best), self)]] },
  -- Of what is equal to the result each has the same share of its gradient.
  extreme_share = { "grad, mine, theirs, dim, index, index_base",
    "grad / scatter_add(mine, dim, index, theirs, index_base)" },
  extreme_mine = { "self, dim, index, include_self, result, index_base", [[
    local there = scatter(zeros_of(self, self.shape, dtype_named("bool")), dim, index, 1, index_base)
    return as(when(include_self, eq(self, result), logical_not(there)), self.dtype)]] },
  extreme_theirs = { "self, dim, index, src, result, index_base",
    "as(eq(narrowed_to(src, index.shape), gather(result, dim, index, index_base)), self.dtype)" },
  extreme_grad_self = { "grad, self, dim, index, src, include_self, result, index_base", [[
    local mine = extreme_mine(self, dim, index, include_self, result, index_base)
    local theirs = extreme_theirs(self, dim, index, src, result, index_base)
    return mine * extreme_share(grad, mine, theirs, dim, index, index_base)]] },
  extreme_grad_src = { "grad, self, dim, index, src, include_self, result, index_base", [[
    local mine = extreme_mine(self, dim, index, include_self, result, index_base)
    local theirs = extreme_theirs(self, dim, index, src, result, index_base)
    local g = theirs * gather(extreme_share(grad, mine, theirs, dim, index, index_base), dim, index, index_base)
    return when(same_list(src.shape, index.shape), g, cornered(grad, src.shape, index.shape, g))]] },
  -- Products: index sorted, then each run's product by doubling, which the last of the run has.
  scattered_prod = { "self, dim, index, src, include_self, index_base", [[
    local start = only_given(self, dim, index, include_self, 1, index_base)
    local at, order = sort(index, dim, false, 0)
    local n = when(equal(at.ndim, 0), 1, at.shape[dim])
    local x = gather(narrowed_to(src, index.shape), dim, order, 0)
    local runs = fold(x, doublings(n), function(y, k)
      local stride = power_of(2, k)
      local same = eq(narrow(at, dim, stride, n - stride), narrow(at, dim, 0, n - stride))
      local b = narrow(y, dim, stride, n - stride)
      return cat(tensors(narrow(y, dim, 0, stride), where(same, b * narrow(y, dim, 0, n - stride), b)), dim)
    end)
    local m = when(gt(n, 0), n - 1, 0)
    local ends = full_of(self, with_size(at, dim, 1), 1, dtype_named("bool"))
    local last = when(equal(at.ndim, 0), ends,
      cat(tensors(ne(narrow(at, dim, n - m, m), narrow(at, dim, 0, m)), narrow(ends, dim, 0, n - m)), dim))
    local none_yet = scatter(ones_like(self), dim, index, 0, index_base)
    return start * scatter_add(none_yet, dim, at, masked_fill(runs, logical_not(last), 0), index_base)]] },
  scattered_mean = { "self, dim, index, src, include_self, index_base", [[
    local x = narrowed_to(src, index.shape)
    local total = scatter_add(only_given(self, dim, index, include_self, 0, index_base), dim, index, x, index_base)
    local ones = only_given(ones_like(self), dim, index, include_self, 0, index_base)
    local n = scatter_add(ones, dim, index, ones_like(x), index_base)
    return when(inexact(self), total / n, floor_divide(total, n))]] },

  -- ---- linear --------------------------------------------------------------------------------------
  -- x (…, n) as (rows, n)
  as_rows = { "x", "when(equal(x.ndim, 2), x, reshape(x, list(product(first_n(x.shape, x.ndim - 1)), x.shape[-1])))" },
  -- Matrices a (…, m, k) times one b (k, w), as one tall matrix; and batched, with leading dimensions broadcast.
  tall_product = { "a, b", [[
    local lead = first_n(a.shape, a.ndim - 1)
    return view(mm(reshape(a, list(product(lead), a.shape[-1])), b), join(lead, list(b.shape[-1])))]] },
  batched_product = { "a, b", [[
    local lead = wide(first_n(a.shape, a.ndim - 2), first_n(b.shape, b.ndim - 2))
    local m, k, w = a.shape[-2], a.shape[-1], b.shape[-1]
    local x = reshape(expand(a, join(lead, list(m, k))), list(product(lead), m, k))
    local y = reshape(expand(b, join(lead, list(k, w))), list(product(lead), k, w))
    return view(bmm(x, y), join(lead, list(m, w)))]] },
  -- beta x + alpha y in the shape of y; with beta 0 x counts for nothing.
  added = { "x, y, beta, alpha", [[
    local full = expand(x, y.shape)
    return when(equal(beta, 0), scale(y, alpha), scale(full, beta) + scale(y, alpha))]] },
  linear_backward_input = { "grad, weight", [[
    local rows = mm(as_rows(grad), weight)
    return when(equal(grad.ndim, 2), rows, reshape(rows, replace(grad.shape, -1, weight.shape[1])))]] },
  linear_backward_weight = { "grad, input", "mm(t(as_rows(grad)), as_rows(input))" },
  linear_backward_bias = { "grad", "sum(as_rows(grad), list(0))" },

  -- ---- networks ------------------------------------------------------------------------------------
  -- d/d output of (g - sum(g o)) o, times h
  softmax_double_backward = { "h, g, output, dim",
    "h * g - sum_keep(h * output, dim) * g - sum_keep(g * output, dim) * h" },
  -- Gradients of a normalisation of x by its input, weight w and bias, of g: of x seen as `stat`, three sizes, over the
  -- dimensions `over` of that. The parameters, of shape `param`, lie along the dimensions not in `sums` of `affine`. own:
  -- the statistics are functions of x, not the given mean and rstd.
  norm_gradients = { "g, x, w, eps, stat, over, affine, sums, param, rms, own, mean, rstd", [[
    local whole = reshape(x, stat)
    local given_mean, given_rstd = channel_of(mean, stat), channel_of(rstd, stat)
    local centred = when(own, when(rms, whole, whole - op.mean(whole, over, true)), whole - given_mean)
    local r = when(own, rsqrt(op.mean(square(centred), over, true) + eps), given_rstd)
    local normal = centred * r
    local full = reshape(g, affine)
    local weighted = reshape(when(given(w), full * reshape(w, param), full), stat)
    local moved = weighted - normal * op.mean(weighted * normal, over, true)
    local d = when(own, when(rms, moved, moved - op.mean(weighted, over, true)), weighted)
    return reshape(d * r, x.shape), sum(full * reshape(normal, affine), sums), sum(full, sums)]] },
  channel_of = { "v, stat", "reshape(v, list(1, stat[1], 1))" },
  rows_gradients = { "g, x, w, eps, dims, rms", [[
    local rows = list(1, product(first_n(x.shape, x.ndim - dims)), product(last_n(x.shape, dims)))
    local param = last_n(x.shape, dims)
    local dx, dw, db = norm_gradients(g, x, w, eps, rows, list(2), rows, list(0, 1), list(1, 1, rows[2]), rms, true, x, x)
    return dx, reshape(dw, param), reshape(db, param)]] },
  layer_norm_gradients = { "g, x, w, dims, eps", "rows_gradients(g, x, w, eps, dims, false)" },
  rms_norm_gradients = { "g, x, w, dims, eps", [[
    local dx, dw, db = rows_gradients(g, x, w, eps, dims, true)
    return dx, dw]] },
  group_norm_gradients = { "g, x, w, groups, eps", [[
    local n, channels, inner = x.shape[0], x.shape[1], product(drop_n(x.shape, 2))
    local stat = list(n, groups, inner * floor_divide(channels, groups))
    return norm_gradients(g, x, w, eps, stat, list(2), list(n, channels, inner), list(0, 2), list(1, channels, 1),
      false, true, x, x)]] },
  batch_norm_gradients = { "g, x, w, training, eps, mean, rstd", [[
    local stat = list(x.shape[0], x.shape[1], product(drop_n(x.shape, 2)))
    return norm_gradients(g, x, w, eps, stat, list(0, 2), stat, list(0, 2), list(1, stat[1], 1), false, training, mean,
      rstd)]] },
  -- ---- recurrent layers: backward through time, a row of gradients for each step -----------------------
  in_time = { "x, reverse", "when(reverse, flip(x, list(0)), x)" }, -- steps in the order in which they are made
  states_before = { "x0, x", "op.cat(tensors(unsqueeze(x0, 0), narrow(x, 0, 0, x.shape[0] - 1)), 0)" },
  lstm_gradients = { "g, gc, gg, weight, h0, c0, output, cells, gates, reverse", [[
    local T, N, h = gates.shape[0], h0.shape[0], h0.shape[1]
    local out, cell, gate = in_time(output, reverse), in_time(cells, reverse), in_time(gates, reverse)
    local dout = in_time(when(given(g), g, zeros_like(output)), reverse)
    local dcell = in_time(when(given(gc), gc, zeros_like(cells)), reverse)
    local dgate = in_time(when(given(gg), gg, zeros_like(gates)), reverse)
    local before = states_before(c0, cell)
    local rows = fold(zeros_of(h0, list(1, N, h * 6), none), T, function(rows, k)
      local behind, s = select(rows, 0, k), T - 1 - k
      local a, more = select(gate, 0, s), select(dgate, 0, s)
      local i, f, n, o = narrow(a, 1, 0, h), narrow(a, 1, h, h), narrow(a, 1, h * 2, h), narrow(a, 1, h * 3, h)
      local y = tanh(select(cell, 0, s))
      local dh = narrow(behind, 1, 0, h) + select(dout, 0, s)
      local dc = narrow(behind, 1, h, h) + select(dcell, 0, s) + dh * o * (1 - y * y)
      local d = op.cat(tensors(
        (dc * n + narrow(more, 1, 0, h)) * i * (1 - i),
        (dc * select(before, 0, s) + narrow(more, 1, h, h)) * f * (1 - f),
        (dc * i + narrow(more, 1, h * 2, h)) * (1 - n * n),
        (dh * y + narrow(more, 1, h * 3, h)) * o * (1 - o)), 1)
      return op.cat(tensors(rows, unsqueeze(op.cat(tensors(matmul(d, weight), dc * f, d), 1), 0)), 0)
    end)
    local d = flip(narrow(narrow(rows, 0, 1, T), 2, h * 2, h * 4), list(0))
    local last = select(rows, 0, T)
    local dweight = matmul(t(reshape(d, list(T * N, h * 4))), reshape(states_before(h0, out), list(T * N, h)))
    return in_time(d, reverse), dweight, narrow(last, 1, 0, h), narrow(last, 1, h, h)]] },
  gru_gradients = { "g, gg, weight, h0, output, gates, reverse", [[
    local T, N, h = gates.shape[0], h0.shape[0], h0.shape[1]
    local out, gate = in_time(output, reverse), in_time(gates, reverse)
    local dout = in_time(when(given(g), g, zeros_like(output)), reverse)
    local dgate = in_time(when(given(gg), gg, zeros_like(gates)), reverse)
    local before = states_before(h0, out)
    local rows = fold(zeros_of(h0, list(1, N, h * 7), none), T, function(rows, k)
      local s = T - 1 - k
      local a, more = select(gate, 0, s), select(dgate, 0, s)
      local r, z, n, hidden = narrow(a, 1, 0, h), narrow(a, 1, h, h), narrow(a, 1, h * 2, h), narrow(a, 1, h * 3, h)
      local dh = narrow(select(rows, 0, k), 1, 0, h) + select(dout, 0, s)
      local dn = (dh * (1 - z) + narrow(more, 1, h * 2, h)) * (1 - n * n)
      local dz = (dh * (select(before, 0, s) - n) + narrow(more, 1, h, h)) * z * (1 - z)
      local dr = (dn * hidden + narrow(more, 1, 0, h)) * r * (1 - r)
      local dy = op.cat(tensors(dr, dz, dn * r + narrow(more, 1, h * 3, h)), 1)
      local row = op.cat(tensors(dh * z + matmul(dy, weight), dr, dz, dn, dy), 1)
      return op.cat(tensors(rows, unsqueeze(row, 0)), 0)
    end)
    local all = flip(narrow(rows, 0, 1, T), list(0))
    local dy = reshape(narrow(all, 2, h * 4, h * 3), list(T * N, h * 3))
    return in_time(narrow(all, 2, h, h * 3), reverse), matmul(t(dy), reshape(before, list(T * N, h))),
      sum(dy, list(0)), narrow(select(rows, 0, T), 1, 0, h)]] },

  -- v (C) reshaped to broadcast with the channels of x (N, C, …).
  by_channel = { "v, x", "reshape(v, join(list(v.numel), ones_n(x.ndim - 2)))" },
  -- The weight of each target in cross_entropy: that of its class, 0 if it is ignored.
  class_weights = { "self, target, weight, ignore_index, index_base", [[
    local ok = ne(target, ignore_index)
    local class = reshape(where(ok, target - index_base, 0), list(target.numel))
    local w = when(given(weight), reshape(index_select(weight, 0, class, 0), target.shape),
      full_of(self, target.shape, 1, none))
    return where(ok, w, 0)]] },
  -- Repeats the heads of x (B, K, S, E) for query (B, H, L, E), whose heads share them in groups of H / K; and sums over
  -- the groups.
  as_heads = { "x, query",
    "when(equal(x.shape[1], query.shape[1]), x, repeat_interleave(x, floor_divide(query.shape[1], x.shape[1]), 1))" },
  from_heads = { "g, x", [[
    local shared = list(x.shape[0], x.shape[1], floor_divide(g.shape[1], x.shape[1]), g.shape[2], g.shape[3])
    return when(equal(x.shape[1], g.shape[1]), g, sum(reshape(g, shared), list(2)))]] },
  attention_scores = { "query, key, attn_mask, is_causal, scale", [[
    local s = matmul(query, transpose(as_heads(key, query), -2, -1)) * scale
    local masked = when(given(attn_mask), when(is_float(attn_mask), s + attn_mask, where(attn_mask, s, -inf)), s)
    local row, column = arange_of(query, 0, query.shape[2], none), arange_of(query, 0, key.shape[2], none)
    return when(is_causal, where(le(column, unsqueeze(row, 1)), masked, -inf), masked)]] },
  native_dropout_grad = { "grad, mask, p", "dropout_backward(grad, mask, when(lt(p, 1), 1 / (1 - p), 0))" },
  -- cross_entropy_backward is linear in grad_output: its derivative is the sum of grad with the backward of ones, over
  -- the classes.
  cross_entropy_double_backward = {
    "grad, self, target, weight, reduction, ignore_index, label_smoothing, index_base", [[
    local by_row = both(eq(reduction, "none"), equal(self.ndim, 2))
    local one = full_of(self, when(by_row, list(self.shape[0]), list()), 1, none)
    local g = cross_entropy_backward(one, self, target, weight, reduction, ignore_index, label_smoothing, index_base)
    return when(by_row, sum(g * grad, list(-1)), sum(g * grad))]] },
  -- cross_entropy_backward is g S (p - q / S) for each row of logits: p their softmax, q the target's weights of the
  -- classes, S their sum. Its derivative is that of g S p: softmax_backward of g S grad. The loss of equal logits is
  -- S log C, which gives S for every weight, smoothing and ignored class; with one class p is 1 for any logits.
  cross_entropy_backward_self = {
    "grad, grad_output, self, target, weight, reduction, ignore_index, label_smoothing, index_base", [[
    local classes, zero = self.shape[-1], zeros_like(self)
    local loss = cross_entropy(zero, target, weight, "none", ignore_index, label_smoothing, index_base)
    local share = when(eq(reduction, "mean"),
      cross_entropy(zero, target, weight, reduction, ignore_index, label_smoothing, index_base) / sum(loss),
      ones_like(grad_output))
    local s = loss * share * grad_output * when(gt(classes, 1), 1 / log_of(classes), 0)
    return softmax_backward(unsqueeze(s, -1) * grad, softmax(self, -1), -1)]] },
  -- Second derivatives of activations. For large |x| they are 0, but a product of Inf and 0 would be NaN: hence clamps.
  -- gelu: (2 - x^2) phi(x)
  gelu_double_backward = { "grad, self", [[
    local x = clamp(self, -40, 40)
    local xx = x * x
    return grad * (exp(xx * -0.5) * 0.3989422804014327 * (2 - xx))]] },
  -- x s, s = sigmoid(z), z = b x + c x^3: s (1 - s) (2 z' + x z'' + x z'^2 (1 - 2 s)), where 2 z' + x z'' = 2 b + 12 c x^2
  gelu_tanh_double_backward = { "grad, self", [[
    local b, c, x = 1.5957691216057308, 0.07135481627260025, clamp(self, -30, 30)
    local xx = x * x
    local s = sigmoid(x * (xx * c + b))
    local dz = xx * (3 * c) + b
    return sigmoid_backward(grad, s) * (xx * (12 * c) + 2 * b + x * (dz * dz) * (1 - s * 2))]] },
  -- x t, t = tanh(softplus(x)), s = sigmoid(x): (1 - t^2) s (2 + x (1 - s (1 + 2 t)))
  mish_double_backward = { "grad, self", [[
    local x = clamp(self, -1000, 1000)
    local t1 = tanh(softplus(x))
    local s = sigmoid(x)
    return tanh_backward(grad, t1) * s * (x * (1 - s * (t1 * 2 + 1)) + 2)]] },
  conv_bias_grad = { "grad", "sum(grad, when(equal(grad.ndim, 4), list(0, 2, 3), list(1, 2)))" },
  conv2d_plain = { "input, weight, stride, padding, dilation, groups",
    "conv2d(input, weight, none, stride, padding, dilation, groups)" },
  im2col_backward = { "grad, shape, kernel_size, dilation, padding, stride",
    "col2im(grad, last_n(shape, 2), kernel_size, dilation, padding, stride)" },
  -- The elements of grad at the windows' maxima.
  max_pool2d_pick = { "grad, indices, index_base",
    "reshape(gather(flatten(grad, -2, -1), -1, flatten(indices, -2, -1), index_base), indices.shape)" },
  adaptive_max_pool2d_backward = { "grad, indices, shape, index_base",
    "max_pool2d_backward(grad, indices, shape, none, none, none, none, index_base)" },
  adaptive_avg_pool2d_like = { "grad, shape", "adaptive_avg_pool2d(grad, last_n(shape, 2))" },

  -- ---- matrices, the last two dimensions -----------------------------------------------------------
  precise = { "x", 'either(is_complex(x), either(equal(x.dtype, dtype_named("float32")), equal(x.dtype, dtype_named("float64"))))' },
  batch_of = { "x", "first_n(x.shape, x.ndim - 2)" },
  eye_like = { "x", "beside(x, eye(x.shape[-1], none, x.dtype, x.device))" },
  -- Whether b is to A of linalg.solve vectors, not matrices.
  is_vector_of = { "a, b", "either(equal(b.ndim, 1), same_list(b.shape, first_n(a.shape, a.ndim - 1)))" },
  -- The lower triangle with 1 on its diagonal.
  unit_lower = { "x", "tril(x, -1) + beside(x, eye(x.shape[-2], x.shape[-1], x.dtype, x.device))" },
  -- y after Householder reflection i: y - tau v v' y.
  reflected = { "y, vectors, tau, i", [[
    local v = narrow(vectors, -1, i, 1)
    return y - matmul(v * unsqueeze(narrow(tau, -1, i, 1), -1), matmul(adjoint(v), y))]] },
  -- 1 or -1 by the number of rows that pivots exchange.
  exchanges_sign = { "pivots", [[
    local moved = sum(ne(pivots, arange_of(pivots, 1, pivots.shape[-1] + 1, pivots.dtype)), list(-1))
    return remainder(moved, 2) * -2 + 1]] },
  -- Singular values s (from the largest) up to this count as 0.
  rank_limit = { "s, x, atol, rtol", [[
    local top = amax(cat(tensors(s, zeros_of(s, replace(s.shape, -1, 1), none)), -1), list(-1), true)
    local usual = eps_of(x) * larger(x.shape[-1], x.shape[-2])
    local least = when(given(atol), when(is_number(atol), top * 0 + as_number(atol), unsqueeze(atol, -1)), top * 0)
    local own = where(gt(least, 0), top * 0, top * usual)
    local relative = when(given(rtol), when(is_number(rtol), top * as_number(rtol), top * unsqueeze(rtol, -1)), own)
    return maximum(relative, least)]] },
  -- L^-T (tril(L' g), its diagonal halved) L^-1, the symmetric part.
  cholesky_backward = { "grad, result, upper", [[
    local l, g = when(upper, adjoint(result), result), when(upper, adjoint(grad), grad)
    local phi = matmul(adjoint(l), g)
    local half = native_solve_triangular(adjoint(l), (tril(phi) + tril(phi, -1)) * 0.5, true, false)
    local full = adjoint(native_solve_triangular(adjoint(l), adjoint(half), true, false))
    return (full + adjoint(full)) * 0.5]] },
  triangular_gradient = { "grad, a, x, upper, unit", [[
    local full = neg(matmul(native_solve_triangular(adjoint(a), grad, negate(upper), unit), adjoint(x)))
    return when(upper, triu(full, when(unit, 1, 0)), tril(full, when(unit, -1, 0)))]] },
  -- Rows of x by LU's pivots: P' x, or P x.
  rows_of = { "x, rows", "gather(x, -2, expand(unsqueeze(rows, -1), x.shape), 0)" },
  lu_backward = { "grad, lu, pivots", [[
    local m, n = lu.shape[-2], lu.shape[-1]
    local k = smaller(m, n)
    local top, gtop = narrow(lu, -2, 0, k), narrow(grad, -2, 0, k)
    local square, g = narrow(top, -1, 0, k), narrow(gtop, -1, 0, k)
    local right, gright = narrow(top, -1, k, n - k), narrow(gtop, -1, k, n - k)
    local below, gbelow = narrow(narrow(lu, -2, k, m - k), -1, 0, k), narrow(narrow(grad, -2, k, m - k), -1, 0, k)
    local l, u = unit_lower(square), triu(square)
    local strict = tril(matmul(adjoint(l), tril(g, -1)) - matmul(gright, adjoint(right)), -1)
    local phi = strict + triu(matmul(triu(g), adjoint(u)) - matmul(adjoint(below), gbelow))
    local left = native_solve_triangular(adjoint(l), phi, true, true)
    local corner = adjoint(native_solve_triangular(u, adjoint(left), true, false))
    local wide_ = cat(tensors(corner, native_solve_triangular(adjoint(l), gright, true, true)), -1)
    local tall = cat(tensors(corner, adjoint(native_solve_triangular(u, adjoint(gbelow), true, false))), -2)
    local values, order = sort(native_lu_rows(pivots, m), -1, false, 0)
    return rows_of(when(gt(m, n), tall, wide_), order)]] },
  lu_solve_gradient = { "grad, lu, pivots, x, adjoint_", [[
    local l, u, rows = unit_lower(lu), triu(lu), native_lu_rows(pivots, lu.shape[-1])
    local r = native_solve_triangular(adjoint(u), neg(matmul(grad, adjoint(x))), false, false)
    local plain = tril(native_solve_triangular(adjoint(l), matmul(r, adjoint(u)), true, true), -1) + triu(r)
    local y = rows_of(x, rows)
    local g = native_solve_triangular(l, rows_of(grad, rows), false, true)
    local h = native_solve_triangular(u, g, true, false)
    local other = neg(tril(matmul(y, adjoint(g)), -1) + triu(matmul(matmul(adjoint(l), y), adjoint(h))))
    return when(adjoint_, other, plain)]] },
  -- A' X = grad: by A's factors, or as a function of A where it is differentiated again.
  solve_again = { "a, lu, pivots, grad", [[
    local again, lu2, pivots2, info = native_solve(adjoint(a), grad, false)
    local lead = batch_of(grad)
    local known = native_lu_solve(expand(lu, join(lead, last_n(lu.shape, 2))), expand(pivots, join(lead, last_n(pivots.shape, 1))),
      grad, true)
    return when(either(records(a), records(grad)), again, known)]] },
  slogdet_backward = { "gsign, glog, sign_, a", [[
    local g = when(is_complex(a), complex(glog, neg(imag(conj(gsign) * sign_))), glog)
    local x, lu, pivots, info = native_solve(adjoint(a), eye_like(a) * unsqueeze(unsqueeze(g, -1), -1), false)
    return x]] },
  pinv_backward = { "grad, p, a", [[
    local ph, gh = adjoint(p), adjoint(grad)
    local k, j = matmul(gh, p), matmul(p, gh)
    local kp, pj = matmul(k, ph), matmul(ph, j)
    local flat = kp - adjoint(matmul(p, k)) - matmul(matmul(a, p), kp) + matmul(matmul(ph, p), gh - matmul(k, a))
    local tall = pj - adjoint(matmul(j, p)) + matmul(matmul(gh - matmul(a, j), p), ph) - matmul(matmul(pj, p), a)
    return when(le(a.shape[-2], a.shape[-1]), flat, tall)]] },
  -- Of A = Q R; of a wide A the first square part of R counts.
  qr_backward = { "gq, gr, q, r", [[
    local m, n = q.shape[-2], r.shape[-1]
    local by_r = when(given(gr), matmul(gr, adjoint(r)), none)
    local by_q = when(given(gq), matmul(adjoint(q), gq), none)
    local both_ = when(given(gq), when(given(gr), by_r - by_q, neg(by_q)), by_r)
    local up = triu(both_)
    local even = when(is_complex(r), triu(up, 1) + diag_embed(op.real(diagonal(up, 0, -2, -1))), up) -- R's diagonal is real
    local tall = matmul(q, tril(adjoint(up), -1) + even)
    local tall_q = when(given(gq), tall + gq, tall)
    local strict = tril(adjoint(both_) - both_, -1)
    local skew = when(is_complex(r), strict + diag_embed(diagonal(adjoint(both_) - both_, 0, -2, -1) * 0.5), strict)
    local flat = adjoint(native_solve_triangular(narrow(r, -1, 0, smaller(m, n)), adjoint(matmul(q, skew)), true, false))
    local whole_ = cat(tensors(flat, zeros_of(flat, replace(flat.shape, -1, larger(n - m, 0)), none)), -1)
    return when(ge(m, n), adjoint(native_solve_triangular(r, adjoint(tall_q), true, false)),
      when(given(gr), whole_ + matmul(q, gr), whole_))]] },
  eigh_backward = { "gw, gv, w, v", [[
    local i = arange_of(w, 0, w.shape[-1], none)
    local gaps = masked_fill(unsqueeze(w, -2) - unsqueeze(w, -1), eq(unsqueeze(i, -1), i), inf)
    local turned = when(given(gv), matmul(adjoint(v), gv) / gaps, none)
    local middle = when(given(gw), turned + diag_embed(gw), turned)
    return when(given(gv), matmul(matmul(v, middle), adjoint(v)), matmul(v * unsqueeze(gw, -2), adjoint(v)))]] },
  -- Eigenvectors of norm 1.
  eig_backward = { "gw, gv, w, v", [[
    local i = arange_of(w, 0, w.shape[-1], none)
    local gaps = masked_fill(conj(unsqueeze(w, -2) - unsqueeze(w, -1)), eq(unsqueeze(i, -1), i), inf)
    local product = when(given(gv), matmul(adjoint(v), gv), none)
    local lengths = when(given(gv), matmul(adjoint(v), v * unsqueeze(op.real(diagonal(product, 0, -2, -1)), -2)), none)
    local turned = when(given(gv), (product - lengths) / gaps, none)
    local middle = when(given(gv), when(given(gw), turned + diag_embed(gw), turned), diag_embed(gw))
    local x, lu, pivots, info = native_solve(adjoint(v), matmul(middle, adjoint(v)), false)
    return x]] },
  -- Complex singular vectors have phases, too.
  with_phases = { "x, gaps, s", [[
    local y = x / gaps * unsqueeze(s, -2)
    return when(is_complex(x), y + diag_embed(diagonal(x, 0, -2, -1) / (s * 2)), y)]] },
  skew_part = { "x", "x - adjoint(x)" },
  -- Of the first min(m, n) singular vectors: the others of full matrices have no derivative.
  svd_backward = { "gu_all, gs, gv_all, u_all, s, v_all", [[
    local k, m, n = s.shape[-1], u_all.shape[-2], v_all.shape[-1]
    local u, v = narrow(u_all, -1, 0, k), narrow(v_all, -2, 0, k)
    local gu = when(given(gu_all), narrow(gu_all, -1, 0, k), none)
    local gv = when(given(gv_all), narrow(gv_all, -2, 0, k), none)
    local i, squares = arange_of(s, 0, k, none), s * s
    local gaps = masked_fill(unsqueeze(squares, -2) - unsqueeze(squares, -1), eq(unsqueeze(i, -1), i), inf)
    local row, column = unsqueeze(s, -2), unsqueeze(s, -1)
    local by_u = when(given(gu_all), with_phases(skew_part(matmul(adjoint(u), gu)), gaps, s), none)
    local by_v = when(given(gv_all), skew_part(matmul(v, adjoint(gv))) / gaps * column, none)
    local turned = when(given(gu_all), when(given(gv_all), by_u + by_v, by_u), by_v)
    local middle = when(given(gs), turned + diag_embed(gs), turned)
    local scaled_u = when(both(given(gu_all), gt(m, k)), gu / row, none)
    local scaled_v = when(both(given(gv_all), gt(n, k)), gv / column, none)
    local core = matmul(matmul(u, middle), v)
    local beyond_u = when(both(given(gu_all), gt(m, k)),
      core + matmul(scaled_u - matmul(u, matmul(adjoint(u), scaled_u)), v), core)
    local all = when(both(given(gv_all), gt(n, k)),
      beyond_u + matmul(u, scaled_v - matmul(matmul(scaled_v, adjoint(v)), v)), beyond_u)
    return when(either(given(gu_all), given(gv_all)), all, matmul(u * unsqueeze(gs, -2), v))]] },
}
