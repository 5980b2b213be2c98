--- moth.llm: what serves language models: a cache of keys and values in blocks, and a scheduler of running sequences.
-- moth.generate and moth.serve.llm are made of it.
return require("moth.lang.lazy")({}, "moth.llm.", { PagedCache = "cache", Scheduler = "schedule", Text = "text",
  Embedder = "embed", perplexity = "perplexity", template = "template",
  Chat = { "generate", "Chat" } })
