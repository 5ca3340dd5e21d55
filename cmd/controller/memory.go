package main

import (
	"io/fs"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// saveMemory collects garbage when the heap has grown by half, and more often near the container's limit: most of the heap is
// the cache, which stays. GOGC and GOMEMLIMIT take precedence.
func saveMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	if limit := memoryLimit(os.DirFS("/sys/fs/cgroup")); limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit)
	}
}

// memoryLimit is nine tenths of the container's limit in bytes, or 0. With cgroups v2, a container sees its own cgroup at the
// root.
func memoryLimit(cgroup fs.FS) int64 {
	text, err := fs.ReadFile(cgroup, "memory.max")
	if err != nil {
		return 0
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil { // max: there is no limit
		return 0
	}
	return limit / 10 * 9
}
