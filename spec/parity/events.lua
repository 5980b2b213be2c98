-- An event file with one of each kind for events.py. Usage: luajit spec/parity/events.lua FOLDER
local moth = require "moth"
local w = moth.tensorboard.SummaryWriter(arg[1])
for i = 1, 5 do w:add_scalar("loss", 1 / i, i) end
w:add_histogram("weights", moth.arange(100), 8, 10)
w:add_image("ramp", moth.arange(12):to(moth.uint8):view(1, 3, 4), 2)
w:add_text("note", "**grüße**", 4)
w:add_graph(moth.nn.Sequential(moth.nn.Linear(4, 8), moth.nn.ReLU()), moth.ones(1, 4))
w:close()
