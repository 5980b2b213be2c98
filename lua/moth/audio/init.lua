--- moth.audio: sound files, resampling, spectrograms (docs/audio.md). Names, options and values are torchaudio's; a
-- waveform is (channels, frames), floats from -1 to 1.
local files = {}
for file, names in require "moth.each" {
  files = "load save info",
  functions = "resample melscale_fbanks create_dct amplitude_to_DB mu_law_encoding mu_law_decoding",
  transforms = [[Resample Spectrogram MelScale MelSpectrogram AmplitudeToDB MFCC FrequencyMasking TimeMasking
    MuLawEncoding MuLawDecoding]],
} do
  for name in names:gmatch "[%w_]+" do files[name] = { file, name } end
end
return require "moth.lang.lazy"({}, "moth.audio.", files, "moth.audio")
