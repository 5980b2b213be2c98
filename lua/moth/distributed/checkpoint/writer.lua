--- Writes the part of one rank, and commits the checkpoint when all have written theirs: on the thread of the user, or
-- on one of its own (asynchronous).
local B = require "moth_lua"
local dcp_save = require "moth.distributed.checkpoint.dcp_save"
local files = require "moth.distributed.checkpoint.files"
local io_ = require "moth.io"

local M = {}

--- job: { dir, id, rank, keys, tensors, values (rank 0) }.
function M.write(job)
  if job.pieces then return dcp_save.write(job) end
  B.save_safetensors(("%s/%s"):format(job.dir, files.part_name(job.id, job.rank)), job.keys, job.tensors, {})
  if job.values then io_.save(job.values, ("%s/%s"):format(job.dir, files.values_name(job.id))) end
end

--- Makes what was written the checkpoint of the folder: rank 0.
function M.commit(job)
  if job.metadata then return dcp_save.commit(job) end
  files.commit(job.dir, job.index)
end

--- The same, in a thread: ranks tell each other through the store, rank 0 commits. Errors are told to all, too.
function M.write_and_commit(job)
  local ok, why = pcall(M.write, job)
  if not job.host then -- one process
    if not ok then error(why, 0) end
    return M.commit(job)
  end
  local store = require("moth.distributed.store").TCPStore(job.host, job.port, { token = job.token,
    timeout = job.timeout })
  local key = ("%scheckpoint/%s/"):format(job.prefix, job.id)
  store:set(key .. job.rank, ok and "" or ("rank %d: %s"):format(job.rank, tostring(why)))
  if job.rank == 0 then
    local keys, bad = {}, ""
    for r = 0, job.size - 1 do keys[r + 1] = key .. r end
    for _, text in ipairs(store:multi_get(keys, job.timeout)) do if bad == "" then bad = text end end
    if bad == "" then
      local fine, problem = pcall(M.commit, job)
      bad = fine and "" or "rank 0: " .. tostring(problem)
    end
    store:set(key .. "done", bad)
  end
  local bad = store:get(key .. "done", job.timeout)
  store:close()
  if bad ~= "" then error("[distributed.checkpoint.save] " .. bad, 0) end
end

return M
