-- The commands of moth_classify.lua. `:set rtp+=examples/hosts/neovim`, or a plugin manager that is given this folder.
local function command(name, method, options)
  vim.api.nvim_create_user_command(name, function(given) require("moth_classify")[method](given) end, options)
end

command("MothLearn", "learn", { nargs = "*", bang = true, complete = "dir" })
command("MothClassify", "classify", { range = "%" })
