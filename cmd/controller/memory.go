package main

import (
	"io/fs"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// saveMemory lets the heap grow by half before it is collected, and not to twice its size: most of
// it is the cache, which lives as long as the process. Near the container's limit it is collected
// more often. GOGC and GOMEMLIMIT say otherwise where they are set.
func saveMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	if limit := memoryLimit(os.DirFS("/sys/fs/cgroup")); limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit)
	}
}

// memoryLimit is nine tenths of what the container may have, in bytes; 0: it may have all. A container
// sees its own cgroup at the root, where the node has cgroups of version 2.
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
