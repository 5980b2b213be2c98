-- moth.audio: torchaudio 2.11's values (spec/parity/audio.lua has more), and files of libsndfile.
local moth = require "moth"
local audio = moth.audio
local available = require("moth.audio.files").available()

local function near(want, got)
  assert.equal(#want, got:numel())
  for i, x in ipairs(want) do assert.is_near(x, got:flatten()[i]:item(), 2e-6) end
end
local x = (moth.arange(0, 400, { dtype = moth.float64 }):pow(1.1) * 0.05):sin():view(1, 400)
local path = os.tmpname()
local function file(suffix)
  local name = path .. suffix
  finally(function() os.remove(name) end)
  return name
end
os.remove(path)

describe("moth.audio #quick", function()
  it("resamples", function()
    near({ 0.004477, 0.077083, 0.167299, 0.25848, 0.351527, 0.442981 }, audio.resample(x, 3, 2):narrow(2, 1, 6))
    assert.equal("[1, 267]", tostring(audio.resample(x, 48000, 32000):size()))
    assert.equal(x, audio.resample(x, 8000, 8000))
    assert.equal("[2, 0]", tostring(audio.Resample(3, 2)(moth.zeros(2, 0)):size()))
    assert.is_true(moth.autograd.gradcheck(function(t) return audio.resample(t, 2, 3) end,
      { x:narrow(2, 1, 9):clone():requires_grad_() }))
    assert.error_matches(function() audio.resample(moth.ones({ 3 }, { dtype = moth.int64 }), 2, 3) end, "floating")
  end)

  it("makes spectrograms, mel bands, cepstra", function()
    local s = audio.Spectrogram { n_fft = 64 }:double()(x)
    assert.equal("[1, 33, 13]", tostring(s:size()))
    near({ 0.066628, 0.004099, 0.000587 }, s:select(3, 3):narrow(2, 4, 3))
    local mel = audio.MelSpectrogram { sample_rate = 8000, n_fft = 64, n_mels = 8, norm = "slaney",
      mel_scale = "slaney" }:double()(x)
    near({ 0.639364, 9e-05, 1e-06, 0 }, mel:select(3, 4):narrow(2, 1, 4))
    local mfcc = audio.MFCC { sample_rate = 8000, n_mfcc = 5, melkwargs = { n_fft = 64, n_mels = 8 } }:double()(x)
    for i, want in ipairs { -88.847011, 77.371529, 35.268589, 8.195121, -0.42094 } do
      assert.is_near(want, mfcc[1][i][4]:item(), 1e-4)
    end
    near({ 0, 0, 0, 0.893459, 0.106541, 0, 0.165692, 0.834308, 0 }, audio.melscale_fbanks(9, 0, 4000, 3, 8000)
      :narrow(1, 1, 3))
    assert.equal(moth.complex128, audio.Spectrogram { n_fft = 64, power = 0 }:double()(x):dtype())
    assert.error_matches(function() audio.Spectrogram { window = "round" } end, "unknown window 'round'")
    assert.error_matches(function() audio.MelScale()(moth.zeros(3, 4)) end, "expected spectra %(…, 201, time%)")
    assert.error_matches(function() audio.melscale_fbanks(9, 4, 4, 3, 8000) end, "f_max")
  end)

  it("codes by mu law, masks strips", function()
    local coded = audio.mu_law_encoding(x, 256)
    assert.same({ 128, 188, 204, 214, 221, 227 }, coded:narrow(2, 1, 6):flatten():totable())
    assert.is_true((audio.MuLawDecoding()(coded) - x):abs():max():item() < 0.03)
    moth.manual_seed(1)
    local ones = moth.ones(2, 20, 30)
    local masked = audio.FrequencyMasking(15)(ones)
    local rows = masked:sum(3):select(1, 1)
    assert.is_true(rows:eq(0):logical_or(rows:eq(30)):all():item())
    assert.is_true(moth.equal(ones, audio.TimeMasking(15):eval()(ones)))
    assert.is_true(moth.equal(ones, audio.TimeMasking(0)(ones)))
    for _ = 1, 20 do -- at most 3 of 30 columns, of each channel by itself
      local own = audio.TimeMasking(15, { iid_masks = true, p = 0.1 })(ones):sum(2)
      assert.is_true(own:eq(0):logical_or(own:eq(20)):all():item())
      assert.is_true(own:eq(0):sum(2):max():item() < 3)
    end
    local strips = audio.FrequencyMasking(20, { iid_masks = true })(moth.ones(2, 8, 20, 5))
    assert.is_true(strips:sum({ 3, 4 }):flatten():std():item() > 0)
    assert.error_matches(function() audio.TimeMasking(3, { iid_masks = true })(moth.ones(4, 4)) end, "channels")
    assert.error_matches(function() audio.TimeMasking(3, { p = 2 }) end, "p must be from 0 to 1, got 2")
    assert.error_matches(function() audio.AmplitudeToDB("power", -80) end, "top_db must be at least 0, got %-80")
    assert.error_matches(function() audio.resample(ones, 2, 1, { rolloff = 0 }) end, "rolloff must be above 0, got 0")
    assert.error_matches(function() audio.Spectrogram()(moth.zeros(1, 0)) end, "stft.*reflecting")
    local way = { resampling_method = "sinc_interp_kaiser", beta = 9 }
    assert.is_true(moth.equal(audio.resample(x, 3, 2, way),
      audio.Resample { orig_freq = 3, new_freq = 2, resampling_method = "sinc_interp_kaiser", beta = 9 }(x)))
  end)

  local files = available and it or pending
  files("writes and reads files", function()
    for _, of in ipairs { { ".wav", "PCM_16", 4e-5 }, { ".flac", "PCM_24", 2e-7 }, { ".wav", "DOUBLE", 6e-8 },
      { ".aiff", "PCM_32", 6e-8 } } do
      local name = file(of[1])
      local stereo = moth.cat({ x, -x }, 1)
      audio.save(name, stereo, 8000, { encoding = of[2] })
      local y, rate = audio.load(name)
      assert.equal(8000, rate)
      assert.equal(moth.float32, y:dtype())
      assert.is_true((y:double() - stereo):abs():max():item() <= of[3])
      assert.is_true(moth.equal(y:narrow(2, 101, 7), (audio.load(name, 100, 7))))
      local info = audio.info(name)
      assert.same({ of[1]:sub(2), of[2], 400, 2, 8000 }, { info.format, info.encoding, info.num_frames,
        info.num_channels, info.sample_rate })
      assert.error_matches(function() audio.load(name, 401) end, "frame_offset is 401, and there are 400 frames")
    end
    local name = file ".wav"
    audio.save(name, moth.tensor { { 2, -2, 0.5 } }, 8000) -- cut, not wrapped
    near({ 32767 / 32768, -1, 0.5 }, (audio.load(name)))
    assert.error_matches(function() audio.save(name, moth.full({ 1, 2 }, 0 / 0), 8000) end, "nan, which PCM_16 cannot")
    audio.save(name, moth.zeros(1, 0), 8000)
    assert.equal("[1, 0]", tostring((audio.load(name)):size()))
  end)

  files("says what it cannot read or write", function()
    assert.error_matches(function() audio.load "/nowhere/x.wav" end, "/nowhere/x.wav: No such file or directory")
    assert.error_matches(function() audio.load "README.md" end, "README.md: Format not recognised")
    assert.error_matches(function() audio.save("x.wax", x, 8000) end, "unknown format 'wax'")
    assert.error_matches(function() audio.save("x.wav", x, 8000, { encoding = "VORBIS" }) end, "wav does not take")
    assert.error_matches(function() audio.save("x.wav", moth.zeros(3), 8000) end, "waveform %(channels, frames%)")
  end)
end)
