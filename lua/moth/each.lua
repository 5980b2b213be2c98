--- A table's own fields: moth's loops over them are written `for k, v in each(t) do`, never by `pairs` or `next`.
-- LuaJIT knows loops by these two names and compiles them in a way of their own, which in Debian 12's version (of
-- March 2022) is wrong: where registers are few, a field's address is cut to 32 bits, and the process ends (LuaJIT's
-- issue 829, mended two weeks later). What it does not know by name it compiles as calls of `next`.
return function(t) return next, t end
