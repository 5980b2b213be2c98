"""moth serve, asked by the clients of others: tritonclient over HTTP, and its metrics by prometheus_client's parser."""
PACKAGES = "tritonclient[http]==2.73.0 prometheus_client==0.26.0 numpy==2.4.6"
MEETS = ("KServe's protocol by tritonclient: readiness, metadata, inference with JSON and with binary tensors, errors; `/metrics` "
         "parsed by prometheus_client: kinds, help, buckets of histograms")
LIMITS = "tritonclient's shared memory, statistics and gRPC"

import os
import socket
import subprocess
import time
import urllib.request

import numpy as np
import tritonclient.http as triton
from prometheus_client.parser import text_string_to_metric_families

import moth

weight = np.array(moth.result("serve", moth.folder + "/net.mth2"), "f4")
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
server = subprocess.Popen([os.environ["MOTH_PROGRAM"], "serve", f"net={moth.folder}/net.mth2", "--port", str(port)],
                          stdout=subprocess.DEVNULL)
runs, families = 0, []
try:
    client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    for _ in range(200):
        try:
            if client.is_server_ready():
                break
        except OSError:
            pass
        time.sleep(0.05)
    moth.expect(client.is_server_live() and client.is_model_ready("net"), "not ready")
    metadata = client.get_model_metadata("net")
    name, result = metadata["inputs"][0]["name"], metadata["outputs"][0]["name"]
    moth.expect(metadata["inputs"][0]["datatype"] == "FP32", metadata)
    for n in (1, 3, 8):
        for binary_in in (True, False):
            for binary_out in (True, False):
                x = np.random.default_rng(n).standard_normal((n, 4)).astype("f4")
                given = triton.InferInput(name, x.shape, "FP32")
                given.set_data_from_numpy(x, binary_data=binary_in)
                asked = [triton.InferRequestedOutput(result, binary_data=binary_out)]
                y = client.infer("net", [given], outputs=asked).as_numpy(result)
                moth.expect(np.allclose(y, x @ weight.T, atol=1e-5), f"{n} {binary_in} {binary_out}: {y}")
                runs += 1
    for bad in (np.zeros((2, 5), "f4"), np.zeros((2, 4), "i8")):
        given = triton.InferInput(name, bad.shape, "INT64" if bad.dtype == np.int64 else "FP32")
        given.set_data_from_numpy(bad)
        try:
            client.infer("net", [given])
            moth.expect(False, f"{bad.shape} {bad.dtype}: no error")
        except triton.InferenceServerException as error:
            moth.expect(name in str(error), error)
    try:
        client.get_model_metadata("none")
        moth.expect(False, "no error for a model that is not there")
    except triton.InferenceServerException as error:
        moth.expect("none" in str(error), error)
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    families = list(text_string_to_metric_families(text))
    kinds = {f.type for f in families}
    moth.expect("counter" in kinds and "unknown" not in kinds and all(f.documentation for f in families), kinds)
    for f in families:
        if f.type == "histogram":
            by_labels = {}
            for s in f.samples:
                if s.name.endswith("_bucket"):
                    key = tuple(sorted((k, v) for k, v in s.labels.items() if k != "le"))
                    by_labels.setdefault(key, []).append((float(s.labels["le"]), s.value))
            for values in by_labels.values():
                ordered = sorted(values)
                moth.expect(ordered[-1][0] == float("inf") and [v for _, v in ordered] == sorted(v for _, v in values), f.name)
finally:
    server.terminate()
    server.wait(20)
moth.end(f"{runs} inferences, {len(families)} families of metrics; the server ended with {server.returncode}")
