--- What the backend "inductor" has made, since the start or moth.compile.reset(): kernels that were not there yet,
-- groups of calls that run as one, calls in these; kernels and segments that were timed.
return { kernels = 0, groups = 0, fused = 0, timed = 0 }
