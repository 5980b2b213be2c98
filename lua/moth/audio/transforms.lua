--- The part of moth.audio that are modules: spectrograms and what is made of them. Each takes a waveform (…, time), or
-- what the one before it gave.
local moth = require "moth"
local nn = require "moth.nn"
local each = require "moth.each"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local functions = require "moth.audio.functions"
local M = {}

-- A module of audio: its options, then `start`(self, o).
local function define(name, options, start, forward)
  local class = nn.class("audio." .. name)
  class.__init = signature.init(("audio.%s(%s)"):format(name, options), function(self, o)
    for key, v in each(o) do self[key] = v end
    if start then start(self, o) end
  end)
  class.forward = forward
  M[name] = class
end

--- audio.resample as a module.
define("Resample", "count orig_freq=16000, count new_freq=16000, *, count lowpass_filter_width=6, \z
  number rolloff=0.99, 'sinc_interp_hann'|'sinc_interp_kaiser' resampling_method='sinc_interp_hann', \z
  number beta=14.769656459379492",
  nil, function(self, x)
    return functions.resample(x, self.orig_freq, self.new_freq, { lowpass_filter_width = self.lowpass_filter_width,
      rolloff = self.rolloff, resampling_method = self.resampling_method, beta = self.beta })
  end)

local windows = { hann = "hann_window", hamming = "hamming_window", blackman = "blackman_window",
  bartlett = "bartlett_window" }
local spectrogram = "count n_fft=400, count win_length?, count hop_length?, size pad=0, string window='hann', \z
  number power?, bool|string normalized=false, bool center=true, string pad_mode='reflect', bool onesided=true"
local function start_spectrogram(self, o)
  self.win_length = o.win_length or o.n_fft
  self.hop_length = o.hop_length or math.floor(self.win_length / 2)
  if not windows[o.window] then
    check.fail("[audio.Spectrogram] unknown window '%s'; there are hann, hamming, blackman, bartlett", o.window)
  end
  if self.win_length > o.n_fft then
    check.fail("[audio.Spectrogram] win_length (%d) must not be above n_fft (%d)", self.win_length, o.n_fft)
  end
  self.window = nil
  self:register_buffer("window", moth[windows[o.window]](self.win_length))
end
local function spectra(self, x)
  if not x:is_floating_point() or x:dim() == 0 then
    check.fail("[audio.Spectrogram] expected a floating waveform (…, time), got %s %s", tostring(x:dtype()),
      tostring(x:size()))
  end
  if self.pad > 0 then x = nn.functional.pad(x, { self.pad, self.pad }) end
  local shape, rows = {}, 1
  for i = 1, x:dim() - 1 do shape[i], rows = x:size(i), rows * x:size(i) end
  local frame = self.normalized == "frame_length"
  local y = moth.stft(x:reshape(rows, x:size(-1)), { n_fft = self.n_fft, hop_length = self.hop_length,
    win_length = self.win_length, window = self.window, center = self.center, pad_mode = self.pad_mode,
    normalized = frame, onesided = self.onesided, return_complex = true })
  shape[#shape + 1], shape[#shape + 2] = y:size(2), y:size(3)
  y = y:reshape(shape)
  if self.normalized == true or self.normalized == "window" then
    y = y / self.window:pow(2):sum():sqrt()
  end
  if self.power == 0 then return y end
  return self.power == 1 and y:abs() or y:abs():pow(self.power)
end
--- Power of the frequencies of overlapping frames: (…, time) -> (…, n_fft / 2 + 1, frames). power: of the amplitude (2
-- if none is given; 0: complex values).
define("Spectrogram", spectrogram, function(self, o)
  self.power = o.power or 2
  start_spectrogram(self, o)
end, spectra)

local mel = "count n_mels=128, count sample_rate=16000, number f_min=0, number f_max?, count n_stft=201, \z
  'slaney' norm?, 'htk'|'slaney' mel_scale='htk'"
local function start_mel(self, o, bins)
  self:register_buffer("fb", functions.melscale_fbanks(bins, o.f_min, o.f_max or math.floor(o.sample_rate / 2),
    o.n_mels, o.sample_rate, o.norm, o.mel_scale))
end
local function bands(self, x)
  if x:dim() < 2 or x:size(-2) ~= self.fb:size(1) then
    check.fail("[audio.MelScale] expected spectra (…, %d, time), got %s", self.fb:size(1), tostring(x:size()))
  end
  return x:transpose(-1, -2):matmul(self.fb:to(x:dtype())):transpose(-1, -2)
end
--- Sums of frequencies by melscale_fbanks: (…, n_stft, time) -> (…, n_mels, time).
define("MelScale", mel, function(self, o) start_mel(self, o, o.n_stft) end, bands)

--- Spectrogram, then MelScale: (…, time) -> (…, n_mels, frames).
define("MelSpectrogram", "count sample_rate=16000, count n_fft=400, count win_length?, count hop_length?, \z
  number f_min=0, number f_max?, size pad=0, count n_mels=128, string window='hann', number power=2, \z
  bool|string normalized=false, bool center=true, string pad_mode='reflect', bool onesided=true, 'slaney' norm?, \z
  'htk'|'slaney' mel_scale='htk'", function(self, o)
  start_spectrogram(self, o)
  start_mel(self, o, math.floor(o.n_fft / 2) + 1)
end, function(self, x) return bands(self, spectra(self, x)) end)

--- Decibels of a "power" or "magnitude" spectrogram; top_db: nothing further below the largest value.
define("AmplitudeToDB", "'power'|'magnitude' stype='power', number top_db?", function(_, o)
  if o.top_db and o.top_db < 0 then
    check.fail("[audio.AmplitudeToDB] top_db must be at least 0, got %g", o.top_db)
  end
end, function(self, x)
  return functions.amplitude_to_DB(x, self.stype == "power" and 10 or 20, 1e-10, 0, self.top_db)
end)

--- Cosines of a mel spectrogram's logarithms: (…, time) -> (…, n_mfcc, frames). log_mels: natural logarithms in place
-- of decibels; melkwargs: MelSpectrogram's options.
define("MFCC", "count sample_rate=16000, count n_mfcc=40, 'ortho'|'none' norm='ortho', bool log_mels=false, \z
  table melkwargs?", function(self, o)
  local more = { sample_rate = o.sample_rate }
  for key, v in each(o.melkwargs or {}) do more[key] = v end
  self.melkwargs, self.MelSpectrogram = nil, M.MelSpectrogram(more)
  if o.n_mfcc > self.MelSpectrogram.n_mels then
    check.fail("[audio.MFCC] n_mfcc (%d) must not be above n_mels (%d)", o.n_mfcc, self.MelSpectrogram.n_mels)
  end
  self:register_buffer("dct_mat", functions.create_dct(o.n_mfcc, self.MelSpectrogram.n_mels,
    o.norm == "ortho" and "ortho" or nil))
end, function(self, x)
  x = self.MelSpectrogram(x)
  x = self.log_mels and (x + 1e-6):log() or functions.amplitude_to_DB(x, 10, 1e-10, 0, 80)
  return x:transpose(-1, -2):matmul(self.dct_mat:to(x:dtype())):transpose(-1, -2)
end)

-- SpecAugment (Park et al. 2019): a strip of a random width below `param` is 0, along dimension dim.
local function mask(name, dim, key)
  return function(self, x)
    if not self.training then return x end
    if x:dim() < (self.iid_masks and 3 or 2) then
      check.fail("[audio.%s] expected %s, got %s", name, self.iid_masks and "(…, channels, frequencies, time)"
        or "(…, frequencies, time)", tostring(x:size()))
    end
    local size, shape = x:size(dim), { 1, 1 }
    for k = 1, self.iid_masks and x:dim() - 2 or 0 do table.insert(shape, k, x:size(k)) end
    local most = self.p == 1 and self[key] or math.min(self[key], math.floor(size * self.p))
    local width = (moth.rand(shape) * most):clamp_max(size)
    local first = (moth.rand(shape) * (size - width)):floor()
    width, first = width:floor():to(x:device()), first:to(x:device())
    local at = moth.arange(0, size, { device = x:device() })
    if dim == -2 then at = at:unsqueeze(2) end
    return x:masked_fill(at:ge(first):logical_and(at:lt(first + width)), 0)
  end
end
--- While training, a strip of fewer than freq_mask_param frequencies of (…, frequencies, time) is 0.
-- iid_masks: another strip in each of (…, channels).
define("FrequencyMasking", "size freq_mask_param, bool iid_masks=false", function(self) self.p = 1 end,
  mask("FrequencyMasking", -2, "freq_mask_param"))
--- While training, a strip of less than time_mask_param, and than the share p, of (…, frequencies, time) is 0.
-- iid_masks: another strip in each of (…, channels).
define("TimeMasking", "size time_mask_param, bool iid_masks=false, number p=1", function(_, o)
  if not (o.p >= 0 and o.p <= 1) then check.fail("[audio.TimeMasking] p must be from 0 to 1, got %g", o.p) end
end, mask("TimeMasking", -1, "time_mask_param"))

--- audio.mu_law_encoding as a module.
define("MuLawEncoding", "count quantization_channels=256", nil, function(self, x)
  return functions.mu_law_encoding(x, self.quantization_channels)
end)
--- audio.mu_law_decoding as a module.
define("MuLawDecoding", "count quantization_channels=256", nil, function(self, x)
  return functions.mu_law_decoding(x, self.quantization_channels)
end)
return M
