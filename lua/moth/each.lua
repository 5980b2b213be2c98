--- A table's own fields: moth's loops over them are written `for k, v in each(t) do`, never by `pairs` or `next`.
-- LuaJIT recognises loops by these names and compiles them specially, which is wrong in Debian 12's version (of March
-- 2022): under register pressure a field's address is cut to 32 bits, and the process crashes (LuaJIT's issue 829,
-- fixed two weeks later). Other iterators it compiles as calls of `next`.
return function(t) return next, t end
