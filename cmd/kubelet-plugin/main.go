// Command kubelet-plugin offers a node's NVIDIA GPUs to Kubernetes through
// Dynamic Resource Allocation. It runs on every GPU node, beside kubelet.
package main

import (
	"os"
	"runtime/debug"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/mica-gpu/mica/pkg/node/driver"
)

// gcPercent trades a little processor time, of which the plugin needs next to
// none, for a third of its heap, of which every node pays.
const gcPercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	driver.RegisterMetrics(legacyregistry.MustRegister)
	os.Exit(cli.Run(newCommand()))
}
