// Command kubelet-plugin offers a node's NVIDIA GPUs to Kubernetes through
// Dynamic Resource Allocation. It runs on every GPU node, beside kubelet.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
)

func main() {
	os.Exit(cli.Run(newCommand()))
}
