--- moth.distributed: programs of several processes (docs/distributed.md). Each file is loaded when first asked for.
--
--     local dist = require "moth.distributed"
--     dist.init_process_group("gloo")        -- rank, size and address from the environment (torchrun's variables)
--     local t = moth.ones(3) * dist.get_rank()
--     dist.all_reduce(t)                     -- op = "sum", "avg", "min", "max", "prod", "band", "bor", "bxor"
--     local work = dist.all_reduce(t, { async = true })
--     work:wait()
--     dist.destroy_process_group()
--
-- Ranks count from 0. `src` and `dst` are ranks of the whole job, also in a group of dist.new_group.
local files = {}
for file, names in require "moth.each" {
  group = [[init_process_group destroy_process_group is_initialized is_available is_gloo_available is_nccl_available
    is_mpi_available get_rank get_world_size get_backend get_process_group_ranks get_global_rank get_group_rank
    new_group split_group stats flight_record ProcessGroup]],
  store = "TCPStore HashStore PrefixStore",
  collectives = [[all_reduce broadcast reduce all_gather all_gather_into_tensor reduce_scatter reduce_scatter_tensor
    all_to_all all_to_all_single gather scatter barrier monitored_barrier]],
  mesh = "device_mesh init_device_mesh DeviceMesh",
  placement = "full_tensor",
  state_dict = [[get_model_state_dict set_model_state_dict get_optimizer_state_dict set_optimizer_state_dict
    get_state_dict set_state_dict]],
  messages = "send recv isend irecv batch_isend_irecv",
  objects = [[all_gather_object broadcast_object_list gather_object scatter_object_list send_object_list
    recv_object_list]],
} do
  for name in names:gmatch("%S+") do files[name] = { file, name } end
end
for name, file in require "moth.each" { -- what needs no group (docs/planner.md)
  plan = "planner.plan", estimate = "planner.estimate", advise = "planner.advise", record = "planner.record",
  simulate = "planner.simulate", schedule = "pipeline.schedule", pipeline = "pipeline",
} do
  files[name] = file
end

files.elastic, files.reform, files.checkpoint = "elastic", { "elastic", "reform" }, "checkpoint"
files.DistributedDataParallel, files.hooks, files.nn, files.join = "ddp", "hooks", "nn", "join"
files.fully_shard, files.fsdp = { "fully_shard", "fully_shard" }, "fsdp"
files.register_fsdp_forward_method = { "fully_shard", "register_fsdp_forward_method" }
files.ZeroRedundancyOptimizer, files.MoE = "zero_optimizer", "moe"
files.context, files.context_parallel = "context", { "context", "context_parallel" }
files.on_preempt = "preempt"
files.tp, files.parallelize_module = "tp", { "tp", "parallelize_module" }

return require("moth.lang.lazy")({}, "moth.distributed.", files)
