-- Computes spec/parity/audio.py's cases with moth.audio, and compares.
local moth = require "moth"
local compare = require "spec.parity.compare"
local audio = moth.audio
moth.set_default_dtype(moth.float64)
local x = (moth.arange(0, 6000, { dtype = moth.float64 }):pow(1.1) * 0.05):sin():view(2, 3000)
local coded = audio.mu_law_encoding(x, 256)
local got = {
  ["resample(16000, 8000)"] = audio.resample(x, 16000, 8000),
  ["resample(8000, 16000)"] = audio.resample(x, 8000, 16000),
  ["resample(44100, 16000)"] = audio.resample(x, 44100, 16000),
  sharp = audio.resample(x, 16000, 22050, { lowpass_filter_width = 16, rolloff = 0.9 }),
  kaiser = audio.resample(x, 3, 7, { resampling_method = "sinc_interp_kaiser" }),
  spectrogram = audio.Spectrogram()(x),
  amplitudes = audio.Spectrogram { n_fft = 256, win_length = 200, hop_length = 64, power = 1, normalized = true,
    pad = 10 }(x),
  frames = audio.Spectrogram { n_fft = 128, normalized = "frame_length", center = false, window = "hamming" }(x),
  mel = audio.MelSpectrogram()(x),
  slaney = audio.MelSpectrogram { sample_rate = 22050, n_fft = 512, n_mels = 40, f_min = 80, f_max = 7000,
    norm = "slaney", mel_scale = "slaney" }(x),
  decibels = audio.AmplitudeToDB("power", 60)(audio.MelSpectrogram { n_mels = 20 }(x)),
  mfcc = audio.MFCC { n_mfcc = 13, melkwargs = { n_mels = 30, n_fft = 400 } }(x),
  log_mels = audio.MFCC { n_mfcc = 13, log_mels = true, norm = "none", melkwargs = { n_mels = 30 } }(x),
  coded = coded, decoded = audio.mu_law_decoding(coded, 256),
  filters = audio.melscale_fbanks(65, 20, 4000, 17, 8000, "slaney", "slaney"),
}
for name, p in pairs(compare.cases(arg[1])) do
  compare.same(name, got[name], compare.tensor(p), 1e-6) -- mu law is decoded in float32 there
end
compare.finish("audio", "torchaudio")
