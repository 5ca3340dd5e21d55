// Command controller makes GPU node groups grow for claims that no node can satisfy, with
// Cluster Autoscaler or without, and says why pods wait. It runs in a Deployment, of which
// one replica leads.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
)

func main() { os.Exit(cli.Run(newCommand())) }
