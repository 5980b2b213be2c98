"""Sound against torchaudio: audio.py FILE writes cases, which spec/parity/audio.lua computes again."""
import json
import sys
import warnings

import torch
import torchaudio.functional as F
import torchaudio.transforms as T

warnings.simplefilter("ignore")
torch.set_default_dtype(torch.float64)
x = torch.sin(0.05 * torch.arange(6000.0) ** 1.1).reshape(2, 3000)
coded = F.mu_law_encoding(x, 256)
cases = {
    "resample(16000, 8000)": F.resample(x, 16000, 8000),
    "resample(8000, 16000)": F.resample(x, 8000, 16000),
    "resample(44100, 16000)": F.resample(x, 44100, 16000),
    "sharp": F.resample(x, 16000, 22050, lowpass_filter_width=16, rolloff=0.9),
    "kaiser": F.resample(x, 3, 7, resampling_method="sinc_interp_kaiser"),
    "spectrogram": T.Spectrogram()(x),
    "amplitudes": T.Spectrogram(n_fft=256, win_length=200, hop_length=64, power=1, normalized=True, pad=10)(x),
    "frames": T.Spectrogram(n_fft=128, normalized="frame_length", center=False, window_fn=torch.hamming_window)(x),
    "mel": T.MelSpectrogram()(x),
    "slaney": T.MelSpectrogram(22050, n_fft=512, n_mels=40, f_min=80, f_max=7000, norm="slaney", mel_scale="slaney")(x),
    "decibels": T.AmplitudeToDB("power", 60)(T.MelSpectrogram(n_mels=20)(x)),
    "mfcc": T.MFCC(n_mfcc=13, melkwargs={"n_mels": 30, "n_fft": 400})(x),
    "log_mels": T.MFCC(n_mfcc=13, log_mels=True, norm=None, melkwargs={"n_mels": 30})(x),
    "coded": coded,
    "decoded": F.mu_law_decoding(coded, 256),
    "filters": F.melscale_fbanks(65, 20.0, 4000.0, 17, 8000, "slaney", "slaney"),
}
with open(sys.argv[1], "w") as f:
    json.dump({k: {"shape": list(v.shape), "data": v.double().flatten().tolist()} for k, v in cases.items()}, f)
