"""Traces of moth's profiler, read by the messages of the perfetto package."""
PACKAGES = "perfetto==0.59.1"
MEETS = ("a profile of training steps as .pftrace, read by Perfetto's own messages: no unknown field, names that are interned, tracks, "
         "slices that nest and end, times in order; the same slices as in the .json of the same profile")
LIMITS = "the package's trace processor is a program that it downloads: not tried"

import collections
import json

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

import moth

moth.result("perfetto", moth.folder)
trace = pb.Trace.FromString(open(moth.folder + "/trace.pftrace", "rb").read())


def known(message, at):
    """Expects that each field of a message, and of those in it, is one of the format."""
    moth.expect(len(UnknownFieldSet(message)) == 0, f"{at}: unknown fields")
    for field, value in message.ListFields():
        if field.message_type:
            for m in value if field.is_repeated else [value]:
                known(m, at + "." + field.name)


known(trace, "trace")
Event = pb.TrackEvent
names, categories, places = (collections.defaultdict(dict) for _ in range(3))
open_slices, last, default, slices, tracks = collections.defaultdict(list), {}, {}, [], {}
for packet in trace.packet:
    s = packet.trusted_packet_sequence_id
    moth.expect(s > 0, "a packet of no sequence")
    if packet.HasField("track_descriptor"):
        tracks[packet.track_descriptor.uuid] = packet.track_descriptor
    if packet.HasField("trace_packet_defaults"):
        default[s] = packet.trace_packet_defaults.track_event_defaults.track_uuid
    for entry in packet.interned_data.event_names:
        names[s][entry.iid] = entry.name
    for entry in packet.interned_data.event_categories:
        categories[s][entry.iid] = entry.name
    for entry in packet.interned_data.source_locations:
        places[s][entry.iid] = entry.file_name
    if not packet.HasField("track_event"):
        continue
    e = packet.track_event
    moth.expect(packet.timestamp >= last.get(s, 0), "time goes back")
    last[s] = packet.timestamp
    moth.expect((e.track_uuid or default[s]) in tracks, "an event of no track")
    if e.type == Event.TYPE_SLICE_BEGIN:
        moth.expect(e.name or e.name_iid in names[s], f"a name that is not interned: {e}")
        moth.expect(all(i in categories[s] for i in e.category_iids), "a category that is not interned")
        moth.expect(not e.source_location_iid or e.source_location_iid in places[s], "a place that is not interned")
        open_slices[s].append([e.name or names[s][e.name_iid], packet.timestamp])
    elif e.type == Event.TYPE_SLICE_END:
        moth.expect(open_slices[s], "an end without a beginning")
        name, begin = open_slices[s].pop()
        slices.append((name, packet.timestamp - begin))
    else:
        moth.expect(e.type in (Event.TYPE_COUNTER, Event.TYPE_INSTANT), f"an event of type {e.type}")
moth.expect(not any(open_slices.values()), f"slices without an end: {dict(open_slices)}")
chrome = [(e["name"], e["dur"]) for e in json.load(open(moth.folder + "/trace.json"))["traceEvents"] if e["ph"] == "X"]
by_name = [collections.Counter(n for n, _ in x) for x in (slices, chrome)]
moth.expect(by_name[0] == by_name[1], f"other slices: {by_name[0] - by_name[1]} {by_name[1] - by_name[0]}")
length = [sorted(x) for x in ([(n, d / 1000) for n, d in slices], chrome)]
moth.expect(all(a[0] == b[0] and abs(a[1] - b[1]) < 1.1 for a, b in zip(*length)), "other lengths")
moth.end(f"{len(trace.packet)} packets, {len(slices)} slices on {len(tracks) - 1} tracks")
