std = "luajit+busted"
max_line_length = 120
cache = false
exclude_files = { "build" }
