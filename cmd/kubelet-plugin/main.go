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

// Every node pays for the plugin's memory, and the plugin needs next to no processor time.
const (
	// gcPercent lets the heap grow by a quarter between collections instead of to twice its size.
	gcPercent = 25
	// processors bounds the caches that Go has per processor: on a node with 192 they would be as
	// much again as all the rest. Calls of NVML take none.
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
