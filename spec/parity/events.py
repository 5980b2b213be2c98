"""Reads the event file of spec/parity/events.lua with TensorBoard's own reader."""
import io
import sys

from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1])
events.Reload()
assert [(s.step, s.value) for s in events.Scalars("loss")][:2] == [(1, 1.0), (2, 0.5)]
histogram = events.Histograms("weights")[0]
assert histogram.step == 8 and histogram.histogram_value.bucket == [10.0] * 10
image = events.Images("ramp")[0]
assert (image.width, image.height) == (4, 3)
assert list(Image.open(io.BytesIO(image.encoded_image_string)).getdata()) == list(range(12))
assert events.Tensors("note/text_summary")[0].tensor_proto.string_val[0].decode() == "**grüße**"
nodes = {n.name: list(n.input) for n in events.Graph().node}
assert nodes["relu"] == ["linear"] and nodes["linear"] == ["input", "0/weight", "0/bias"]

# What plugins read: their messages, parsed by their own classes.
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2 as hparams
from tensorboard.plugins.mesh import plugin_data_pb2 as mesh
from tensorboard.plugins.pr_curve import plugin_data_pb2 as pr
from tensorboard.plugins.projector import projector_config_pb2
from tensorboard.util import tensor_util
from google.protobuf import text_format
import os
import wave

for key in "ab":
    sub = EventAccumulator(os.path.join(sys.argv[1], "both_" + key))
    sub.Reload()
    assert sub.Scalars("both")[0].value == {"a": 1, "b": 2}[key]
figure = events.Images("figure")[0]
assert Image.open(io.BytesIO(figure.encoded_image_string)).size == (figure.width, figure.height)
film = Image.open(io.BytesIO(events.Images("film")[0].encoded_image_string))
assert (film.n_frames, film.size, film.info["duration"]) == (3, (10, 6), 250)
for frame in range(3):
    film.seek(frame)
    assert set(film.convert("RGB").crop((0, 0, 5, 6)).getdata()) == {(0, 0, 0)}
    assert set(film.convert("RGB").crop((5, 0, 10, 6)).getdata()) == {(255, 255, 255)}
noise = Image.open(io.BytesIO(events.Images("noise")[0].encoded_image_string))
noise.seek(1)
assert noise.size == (90, 90) and len(set(noise.convert("RGB").getdata())) > 200
sound = events.Audio("sound")[0]
with wave.open(io.BytesIO(sound.encoded_audio_string)) as f:
    assert (f.getframerate(), f.getnframes(), f.getsampwidth(), sound.sample_rate) == (8000, 1000, 2, 8000)
    assert f.readframes(1) == (-32767).to_bytes(2, "little", signed=True)
config = text_format.Parse(open(os.path.join(sys.argv[1], "projector_config.pbtxt")).read(),
                           projector_config_pb2.ProjectorConfig())
e = config.embeddings[0]
assert open(os.path.join(sys.argv[1], e.tensor_path)).readlines()[1] == "2\t3\n" and list(e.sprite.single_image_dim) == [4, 4]
assert open(os.path.join(sys.argv[1], e.metadata_path)).read() == "a\nb\nc\nd\ne\n"
assert Image.open(os.path.join(sys.argv[1], e.sprite.image_path)).size == (12, 12)


def plugin(tag, cls):
    return cls.FromString(events.SummaryMetadata(tag).plugin_data.content)


assert plugin("pr", pr.PrCurvePluginData).num_thresholds == 5
curve = tensor_util.make_ndarray(events.Tensors("pr")[0].tensor_proto)
try:
    from torch.utils.tensorboard.summary import compute_curve
    import numpy as np
    want = compute_curve(np.array([0, 1, 1, 0, 1]), np.array([0.1, 0.9, 0.6, 0.7, 1], dtype=np.float32), num_thresholds=5)
    assert np.allclose(curve, want), (curve, want)
except ImportError:
    pass
face = plugin("mesh_FACE", mesh.MeshPluginData)
assert (face.name, list(face.shape), face.components, face.content_type) == ("mesh", [1, 2, 3], 14, 2)
assert tensor_util.make_ndarray(events.Tensors("mesh_FACE")[0].tensor_proto).tolist() == [[[0, 1, 2], [1, 2, 3]]]
layout = layout_pb2.Layout.FromString(events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])
charts = {c.title: c for c in layout.category[0].chart}
assert list(charts["lines"].multiline.tag) == ["loss", "both"] and charts["band"].margin.series[0].upper == "c"
hp = EventAccumulator(os.path.join(sys.argv[1], "hp"))
hp.Reload()
content = hparams.HParamsPluginData.FromString(hp.SummaryMetadata("_hparams_/session_start_info").plugin_data.content)
values = content.session_start_info.hparams
assert values["lr"].number_value == 0.1 and values["opt"].string_value == "adam" and values["nesterov"].bool_value
experiment = hparams.HParamsPluginData.FromString(hp.SummaryMetadata("_hparams_/experiment").plugin_data.content).experiment
assert [h.name for h in experiment.hparam_infos] == ["lr", "nesterov", "opt"]
assert [v.string_value for v in experiment.hparam_infos[2].domain_discrete.values] == ["adam", "sgd"]
assert experiment.metric_infos[0].name.tag == "accuracy" and hp.Scalars("accuracy")[0].value == 0.75
assert tensor_util.make_ndarray(events.Tensors("tensor")[0].tensor_proto).tolist() == [[1, 2], [3, 4]]
assert events.Histograms("raw")[0].histogram_value.bucket == [1.0, 2.0]
print("tensorboard: scalars, histograms, images, films, sound, text, graphs and what plugins take are read")
