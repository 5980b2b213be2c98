--- Short-time Fourier transforms, and windows for them. Called by moth.tensor.functions with the tables that the
-- functions of tensors go into.
local B = require "moth_lua"
local ops = B.ops
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

return function(F, methods)
  local function dtype_of(x) return B.tensor_dtype(x) end
  local function like(x) return { dtype = dtype_of(x), device = B.tensor_device(x) } end

  -- ---- windows: periodic ones are a symmetric window of one point more, without the last -------------------

  local function window(name, numbers, from)
    local text = "%s_window(size window_length, bool periodic=true%s, *, dtype dtype?, device device?, \z
      bool requires_grad=false)"
    --- A window of window_length points; periodic: one of a point more, without the last, for spectra.
    F[name .. "_window"] = signature(text:format(name, numbers), function(n, periodic, ...)
      local list, count = { ... }, select("#", ...)
      local dtype, device, requires_grad = unpack(list, count - 2, count)
      local o = { sym = not periodic, dtype = dtype, device = device, requires_grad = requires_grad }
      return (from(require("moth.signal").windows, n, o, unpack(list, 1, count - 3)))
    end)
  end
  for _, name in ipairs { "hann", "blackman", "bartlett" } do
    window(name, "", function(windows, n, o) return windows[name](n, o) end)
  end
  window("hamming", ", number alpha=0.54, number beta=0.46", function(windows, n, o, alpha, beta)
    return windows.general_cosine(n, { alpha, beta }, o)
  end)
  window("kaiser", ", number beta=12", function(windows, n, o, beta)
    o.beta = beta
    return windows.kaiser(n, o)
  end)

  -- ---- transforms -------------------------------------------------------------------------------------------

  -- The window of n_fft points: win_length ones, or those given, with zeros around them.
  local function full_window(name, x, n_fft, win_length, given)
    win_length = win_length or n_fft
    if win_length > n_fft then
      check.fail("[%s] win_length must be at most n_fft, got %d and %d", name, win_length, n_fft)
    end
    if given and (B.dim(given) ~= 1 or B.size(given, 1) ~= win_length) then
      check.fail("[%s] expected a window of win_length = %d points, got %s", name, win_length, B.format(given))
    end
    local float = dtype_of(x).name:find("complex128") and "float64" or dtype_of(x).is_complex and "float32" or nil
    local w = given or ops.ones({ win_length }, { dtype = float or dtype_of(x), device = B.tensor_device(x) })
    if win_length < n_fft then
      local left = math.floor((n_fft - win_length) / 2)
      w = ops.pad(w, { left, n_fft - win_length - left })
    end
    return w
  end

  --- Spectra of overlapping frames of a signal (time) or (batch, time): (…, n_fft / 2 + 1, frames), complex; of
  -- complex signals, or with onesided = false, n_fft rows. Frames are hop_length (n_fft / 4) apart and multiplied by
  -- the window of win_length points (ones); with center the first one is centered on the first element,
  -- and the signal is padded by pad_mode. return_complex = false: the parts as a last dimension.
  local function stft(x, n_fft, hop, win_length, window_, center, pad_mode, normalized, onesided, return_complex)
    local dims = B.dim(x)
    if dims ~= 1 and dims ~= 2 then check.fail("[stft] expected 1 or 2 dimensions, got %s", B.format(x)) end
    local complex = dtype_of(x).is_complex
    local twosided = complex or window_ ~= nil and dtype_of(window_).is_complex
    if onesided == nil then onesided = not twosided end
    if onesided and twosided then check.fail("[stft] onesided results need a real tensor and a real window") end
    hop = hop or math.max(1, math.floor(n_fft / 4))
    local w = full_window("stft", x, n_fft, win_length, window_)
    if dims == 1 then x = ops.unsqueeze(x, 1) end
    if center then
      local side = math.floor(n_fft / 2)
      if pad_mode == "reflect" and side >= B.size(x, 2) then
        check.fail("[stft] reflecting n_fft / 2 = %d elements needs more than those, got %d; see pad_mode", side,
          B.size(x, 2))
      end
      -- as channels of one batch, which every mode takes
      local function padded(part)
        return ops.squeeze(ops.pad(ops.unsqueeze(part, 1), { side, side }, pad_mode), 1)
      end
      x = complex and ops.complex(padded(ops.real(x)), padded(ops.imag(x))) or padded(x)
    end
    if B.size(x, 2) < n_fft then
      check.fail("[stft] n_fft = %d is longer than the signal, of %d elements", n_fft, B.size(x, 2))
    end
    local frames = ops.mul(ops.unfold(x, 2, n_fft, hop), w)
    local fft = require("moth.fft")
    local norm = normalized and "ortho" or "backward"
    local y = onesided and fft.rfft(frames, { norm = norm }) or fft.fft(frames, { norm = norm })
    y = ops.transpose(y, 2, 3)
    if dims == 1 then y = ops.squeeze(y, 1) end
    return return_complex == false and ops.view_as_real(y) or y
  end
  local stft_text = "stft(Tensor input, count n_fft, count hop_length?, count win_length?, Tensor window?, \z
    bool center=true, 'reflect'|'constant'|'replicate'|'circular' pad_mode='reflect', bool normalized=false, \z
    bool onesided?, bool return_complex?)"
  F.stft = signature(stft_text, stft)
  methods.stft = F.stft

  --- The signal whose stft this is, to rounding, where the windows overlap so that their squares add up to more than 0;
  -- `length` elements of it (all).
  local function istft(x, n_fft, hop, win_length, window_, center, normalized, onesided, length, return_complex)
    local dims = B.dim(x)
    if dims ~= 2 and dims ~= 3 or not dtype_of(x).is_complex then
      check.fail("[istft] expected a complex tensor (frequencies, frames) or (batch, frequencies, frames), got %s",
        B.format(x))
    end
    if dims == 2 then x = ops.unsqueeze(x, 1) end
    local rows, count = B.size(x, 2), B.size(x, 3)
    if onesided == nil then onesided = rows ~= n_fft end
    local real_window = window_ == nil or not dtype_of(window_).is_complex
    if onesided and (return_complex or not real_window) then
      check.fail("[istft] complex results, and complex windows, need onesided = false")
    end
    if not real_window and not return_complex then
      check.fail("[istft] a complex window gives complex results: say return_complex = true")
    end
    local expected = onesided and math.floor(n_fft / 2) + 1 or n_fft
    if rows ~= expected then
      check.fail("[istft] expected %d frequencies for n_fft = %d, got %d", expected, n_fft, rows)
    end
    hop = hop or math.max(1, math.floor(n_fft / 4))
    local w = full_window("istft", x, n_fft, win_length, window_)
    local fft = require("moth.fft")
    local norm = normalized and "ortho" or "backward"
    local spectra = ops.transpose(x, 2, 3)
    local half = math.floor(n_fft / 2) + 1 -- of real signals, from which the rest follows
    local frames = return_complex and fft.ifft(spectra, { norm = norm })
      or fft.irfft(ops.narrow(spectra, 3, 1, half), { n = n_fft, norm = norm })
    frames = ops.mul(frames, w)
    -- frames added at their places, and what the squared window adds up to there
    local total = n_fft + hop * (count - 1)
    local at = ops.add(ops.mul(ops.arange(0, count, { device = B.tensor_device(x) }), hop):unsqueeze(2),
      ops.arange(1, n_fft + 1, { device = B.tensor_device(x) }))
    at = ops.reshape(at, { -1 })
    local batch = B.size(x, 1)
    local y = ops.index_add(ops.zeros({ batch, total }, like(frames)), 2, at, ops.reshape(frames, { batch, -1 }))
    local weight = ops.index_add(ops.zeros({ total }, like(w)), 1, at,
      ops.reshape(ops.expand(ops.square(w), { count, n_fft }), { -1 }))
    local first = center and math.floor(n_fft / 2) or 0
    local last = length and first + length or center and total - math.floor(n_fft / 2) or total
    local has = math.min(last, total) - first
    if has < 1 then check.fail("[istft] there are no elements left: %d frames of %d", count, n_fft) end
    y, weight = ops.narrow(y, 2, first + 1, has), ops.narrow(weight, 1, first + 1, has)
    local least = ops.amin(ops.abs(B.alias(B.batch_values(weight), false))):item()
    if not (least > 1e-11) then -- luacheck: ignore 581 (NaN)
      check.fail("[istft] the squared windows add up to %.3g somewhere: they must overlap, and be nonzero", least)
    end
    y = ops.div(y, weight)
    if last - first > has then y = ops.cat({ y, ops.zeros({ batch, last - first - has }, like(y)) }, 2) end
    return dims == 2 and ops.squeeze(y, 1) or y
  end
  local istft_text = "istft(Tensor input, count n_fft, count hop_length?, count win_length?, Tensor window?, \z
    bool center=true, bool normalized=false, bool onesided?, count length?, bool return_complex=false)"
  F.istft = signature(istft_text, istft)
  methods.istft = F.istft
end
