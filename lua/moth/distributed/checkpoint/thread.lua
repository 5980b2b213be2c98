-- The thread of an asynchronous save.
return function(_, job) require("moth.distributed.checkpoint.writer").write_and_commit(job) end
