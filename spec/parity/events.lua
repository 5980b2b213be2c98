-- An event file with one of each kind for events.py. Usage: luajit spec/parity/events.lua FOLDER
local moth = require "moth"
local w = moth.tensorboard.SummaryWriter(arg[1])
for i = 1, 5 do w:add_scalar("loss", 1 / i, i) end
w:add_histogram("weights", moth.arange(100), 8, 10)
w:add_image("ramp", moth.arange(12):to(moth.uint8):view(1, 3, 4), 2)
w:add_text("note", "**grüße**", 4)
w:add_graph(moth.nn.Sequential(moth.nn.Linear(4, 8), moth.nn.ReLU()), moth.ones(1, 4))
w:add_scalars("both", { a = 1, b = 2 }, 3)
w:add_figure("figure", moth.plot.lines({ { { 1, 2, 3 } } }), 1)
w:add_video("film", moth.stack({ moth.zeros(3, 3, 6, 5), moth.ones(3, 3, 6, 5) }, 1), 1)
w:add_video("noise", moth.rand(1, 2, 3, 90, 90), 1)
w:add_audio("sound", moth.arange(1000) / 10 % 2 - 1, 1, 8000)
w:add_embedding(moth.arange(10):float():reshape(5, 2), { metadata = { "a", "b", "c", "d", "e" },
  label_img = moth.rand(5, 3, 4, 4), global_step = 2, tag = "points/1" })
w:add_pr_curve("pr", moth.tensor { 0, 1, 1, 0, 1 }, moth.tensor { 0.1, 0.9, 0.6, 0.7, 1 }, 4, 5)
w:add_mesh("mesh", moth.rand(1, 4, 3), moth.tensor { { { 255, 0, 0 }, { 0, 255, 0 }, { 0, 0, 255 }, { 9, 9, 9 } } }
  :int(), moth.tensor { { { 1, 2, 3 }, { 2, 3, 4 } } }:int(), { camera = { cls = "PerspectiveCamera" } }, 5)
w:add_hparams({ lr = 0.1, opt = "adam", nesterov = true }, { accuracy = 0.75 }, { opt = { "adam", "sgd" } }, "hp")
w:add_custom_scalars { all = { lines = { "Multiline", { "loss", "both" } }, band = { "Margin", { "a", "b", "c" } } } }
w:add_tensor("tensor", moth.tensor { { 1, 2 }, { 3, 4 } }:long(), 6)
w:add_histogram_raw("raw", 0, 2, 3, 3, 5, { 1, 2 }, { 1, 2 }, 7)
w:close()
