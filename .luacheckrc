std = "luajit+busted"
max_line_length = 120
cache = false
exclude_files = { "build" }
-- A schema, and a template of C text, is one line.
files["src/ops"] = { max_line_length = false, read_globals = { "blocks" } }
files["examples/hosts/neovim"] = { read_globals = { "vim" } }
files["examples/hosts/nginx"] = { globals = { "ngx" } }
files["examples/hosts/love"] = { globals = { "love" } }
