"""Event files that moth.tensorboard writes, read by TensorBoard and its plugins: spec/parity/events.py."""
PACKAGES = "tensorboard==2.21.0 pillow numpy==2.4.6"
MEETS = ("scalars, histograms, images, texts, graphs, sound, meshes, hyperparameters, curves, embeddings, read by TensorBoard's own "
         "reader and the messages of its plugins")
LIMITS = ""

import os
import shutil
import subprocess
import sys

import moth

log = os.path.join(moth.folder, "events")
shutil.rmtree(log, ignore_errors=True)
parity = os.path.join(moth.HERE, "..")
subprocess.run([os.environ["MOTH_PROGRAM"], os.path.join(parity, "events.lua"), log], check=True)
said = subprocess.run([sys.executable, os.path.join(parity, "events.py"), log], check=True, stdout=subprocess.PIPE, text=True).stdout
moth.end(said.strip().split("\n")[-1].split(": ", 1)[-1])
