--- The part of moth.audio that computes: resampling, mel filters, decibels, mu law.
local moth = require "moth"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local M = {}

local function gcd(a, b) return b == 0 and a or gcd(b, a % b) end

-- The filter of each of `to` phases, (to, 1, taps), and how far it reaches to the left.
local function kernel(from, to, width_of, rolloff, method, beta, like)
  local base = math.min(from, to) * rolloff
  local width = math.ceil(width_of * from / base)
  local on = { dtype = moth.float64 }
  local at = moth.arange(-width, width + from, on):unsqueeze(1) / from
  local t = (moth.arange(0, -to, -1, on):unsqueeze(2) / to + at) * base
  t = t:clamp(-width_of, width_of)
  local window
  if method == "sinc_interp_hann" then
    window = (t * (math.pi / width_of / 2)):cos():pow(2)
  else
    local b = moth.full({}, beta, on)
    window = moth.special.i0(b * (1 - (t / width_of):pow(2)):sqrt()) / moth.special.i0(b)
  end
  local out = moth.sinc(t) * window * (base / from)
  return out:unsqueeze(2):to(like:dtype()):to(like:device()), width
end

--- A waveform (…, time) at another rate: sinc interpolation -> (…, ceil(time * new_freq / orig_freq)). More
-- lowpass_filter_width: a sharper filter; rolloff: its edge, as a share of the Nyquist frequency.
M.resample = signature("audio.resample(Tensor waveform, count orig_freq, count new_freq, *, \z
  count lowpass_filter_width=6, number rolloff=0.99, \z
  'sinc_interp_hann'|'sinc_interp_kaiser' resampling_method='sinc_interp_hann', number beta=14.769656459379492)",
  function(x, from, to, width_of, rolloff, method, beta)
    if not x:is_floating_point() or x:dim() == 0 then
      check.fail("[audio.resample] expected a floating waveform (…, time), got %s %s", tostring(x:dtype()),
        tostring(x:size()))
    end
    if rolloff <= 0 then check.fail("[audio.resample] rolloff must be above 0, got %g", rolloff) end
    if from == to then return x end
    local common = gcd(from, to)
    from, to = from / common, to / common
    local filters, width = kernel(from, to, width_of, rolloff, method, beta, x)
    local shape, count, length = {}, 1, x:size(-1)
    for i = 1, x:dim() - 1 do shape[i], count = x:size(i), count * x:size(i) end
    shape[#shape + 1] = math.ceil(to * length / from)
    if count * length == 0 then return x:new_zeros(shape) end
    local rows = nn.functional.pad(x:reshape(count, 1, length), { width, width + from })
    local y = nn.functional.conv1d(rows, filters, { stride = from }):transpose(2, 3):reshape(count, -1)
    return y:narrow(2, 1, shape[#shape]):reshape(shape)
  end)

local function to_mel(f, scale)
  if scale == "htk" then return 2595 * math.log(1 + f / 700, 10) end
  return f >= 1000 and 15 + math.log(f / 1000) / (math.log(6.4) / 27) or f * 3 / 200
end
local function from_mel(m, scale)
  if scale == "htk" then return 700 * ((m / 2595 * math.log(10)):exp() - 1) end
  return moth.where(m:ge(15), 1000 * ((m - 15) * (math.log(6.4) / 27)):exp(), m * (200 / 3))
end

--- Triangular filters over n_freqs frequencies from 0 to half of sample_rate, from f_min to f_max Hz, equal on the mel
-- scale -> (n_freqs, n_mels). norm = "slaney": of equal area; mel_scale: "htk" or "slaney".
M.melscale_fbanks = signature("audio.melscale_fbanks(count n_freqs, number f_min, number f_max, count n_mels, \z
  count sample_rate, 'slaney' norm?, 'htk'|'slaney' mel_scale='htk')",
  function(n_freqs, f_min, f_max, n_mels, sample_rate, norm, scale)
    if f_max <= f_min then check.fail("[audio.melscale_fbanks] f_max (%g) must be above f_min (%g)", f_max, f_min) end
    local on = { dtype = moth.float64 }
    local all = moth.linspace(0, math.floor(sample_rate / 2), n_freqs, on)
    local f = from_mel(moth.linspace(to_mel(f_min, scale), to_mel(f_max, scale), n_mels + 2, on), scale)
    local gap = f:narrow(1, 2, n_mels + 1) - f:narrow(1, 1, n_mels + 1)
    local slopes = f:unsqueeze(1) - all:unsqueeze(2)
    local down = slopes:narrow(2, 1, n_mels):neg() / gap:narrow(1, 1, n_mels)
    local up = slopes:narrow(2, 3, n_mels) / gap:narrow(1, 2, n_mels)
    local out = down:minimum(up):clamp_min(0)
    if norm then out = out * (2 / (f:narrow(1, 3, n_mels) - f:narrow(1, 1, n_mels))):unsqueeze(1) end
    return out:to(moth.get_default_dtype())
  end)

--- The first n_mfcc cosines over n_mels points -> (n_mels, n_mfcc); norm = "ortho": orthonormal.
M.create_dct = signature("audio.create_dct(count n_mfcc, count n_mels, 'ortho' norm?)", function(n_mfcc, n_mels, norm)
  local on = { dtype = moth.float64 }
  local k = moth.arange(0, n_mfcc, on):unsqueeze(1)
  local out = ((moth.arange(0, n_mels, on) + 0.5):unsqueeze(2) * k * (math.pi / n_mels)):cos()
  if not norm then return (out * 2):to(moth.get_default_dtype()) end
  out:narrow(2, 1, 1):mul_(math.sqrt(0.5))
  return (out * math.sqrt(2 / n_mels)):to(moth.get_default_dtype())
end)

--- multiplier * log10(max(x, amin)) - multiplier * db_multiplier; nothing further below the largest value of (channels,
-- frequencies, time) than top_db.
M.amplitude_to_DB = signature("audio.amplitude_to_DB(Tensor x, number multiplier, number amin, number db_multiplier, \z
  number top_db?)", function(x, multiplier, amin, db_multiplier, top_db)
  local out = x:clamp_min(amin):log10() * multiplier - multiplier * db_multiplier
  if not top_db then return out end
  if x:dim() < 2 then return out:maximum(out:max() - top_db) end
  local shape = out:size()
  local packed = out:reshape(-1, x:dim() > 2 and x:size(-3) or 1, x:size(-2), x:size(-1))
  if packed:numel() == 0 then return out end
  return packed:maximum(packed:amax({ 2, 3, 4 }, { keepdim = true }) - top_db):reshape(shape)
end)

--- A waveform from -1 to 1 as whole numbers from 0 to quantization_channels - 1, finer near 0 (int64).
M.mu_law_encoding = signature("audio.mu_law_encoding(Tensor x, count quantization_channels)", function(x, channels)
  local mu = channels - 1
  local y = x:sign() * (x:abs() * mu):log1p() / math.log(1 + mu)
  return ((y + 1) / 2 * mu + 0.5):to(moth.int64)
end)

--- What mu_law_encoding made, as a waveform again.
M.mu_law_decoding = signature("audio.mu_law_decoding(Tensor x_mu, count quantization_channels)", function(x, channels)
  local mu = channels - 1
  if not x:is_floating_point() then x = x:to(moth.get_default_dtype()) end
  x = x / mu * 2 - 1
  return x:sign() * ((x:abs() * math.log(1 + mu)):exp() - 1) / mu
end)
return M
