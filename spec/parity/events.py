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
print("tensorboard: scalars, a histogram, an image, text and a graph are read")
