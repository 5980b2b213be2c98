--- Arrow and Parquet files are not read: they are converted by Python's pyarrow to .npy files, one for each column,
-- which moth.mmap maps.
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local system = require "moth.utils.system"

local M = {}

local convert = [[python3 -c "import sys, numpy, pyarrow.feather as f, pyarrow.parquet as p; \
t = p.read_table(sys.argv[1]) if sys.argv[1].endswith('.parquet') else f.read_table(sys.argv[1]); \
[numpy.save(n + '.npy', t[n].to_numpy()) for n in t.column_names]" %s]]

--- Always an error, which says how to convert the file.
M.open = signature("data.arrow.open(path path)", function(path)
  check.fail("[data.arrow.open] %s: Arrow and Parquet files are not supported; HINT: convert the columns to .npy by "
    .. "pyarrow, then moth.mmap(\"column.npy\"):\n%s", path, convert:format(system.quoted(path)))
end)

return require("moth.lang.lazy").strict(M, "moth.data.arrow")
