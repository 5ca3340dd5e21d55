// Command kubelet-plugin offers a node's NVIDIA GPUs to Kubernetes through
// Dynamic Resource Allocation. It runs on every GPU node, beside kubelet.
package main

import (
	"os"
	"runtime"
	"runtime/debug"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/mica-gpu/mica/pkg/node/driver"
)

// Memory counts on every node; the plugin needs little processor time.
const (
	// gcPercent lets the heap grow by a quarter between collections instead of to twice its size.
	gcPercent = 25
	// processors bounds Go's caches per processor, which would double the memory on a node with
	// 192. Calls of NVML do not count.
	processors = 2
)

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), processors))
	}
	driver.RegisterMetrics(legacyregistry.MustRegister)
	os.Exit(cli.Run(newCommand()))
}
