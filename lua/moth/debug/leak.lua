--- moth.memory.leak_check among the other tools of moth.debug.
local leak_check = require("moth.memory.leak").leak_check
return { leak_check = require("moth.utils.signature").alias("debug.leak_check", leak_check) }
