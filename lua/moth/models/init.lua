--- moth.models: whole networks. Each file is loaded when it is first asked for.
return require("moth.lang.lazy")({}, "moth.models.", { GPT = "gpt" })
