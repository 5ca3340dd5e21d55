// A Redis in memory, for the test of queues.
module github.com/mica-gpu/mica/test/redis

go 1.26.0

require github.com/alicebob/miniredis/v2 v2.40.0

require github.com/yuin/gopher-lua v1.1.1 // indirect
