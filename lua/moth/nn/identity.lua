--- nn.Identity: returns its input; takes (and ignores) any arguments.
local class = require "moth.class"
local Module = require "moth.nn.module"

local Identity = class("Identity", Module)

function Identity.__init() end

function Identity.forward(_, ...) return ... end

return Identity
