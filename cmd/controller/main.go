// Command controller makes GPU node groups grow for claims that no node can satisfy, with Cluster Autoscaler or without, and
// reports why pods wait. It runs in a Deployment with leader election.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/mica-gpu/mica/pkg/elastic/keda"
	"github.com/mica-gpu/mica/pkg/elastic/standby"
	"github.com/mica-gpu/mica/pkg/scaleout/control"
)

func main() {
	metrics.Registry.MustRegister(control.Metrics()...)
	metrics.Registry.MustRegister(keda.Metrics()...)
	metrics.Registry.MustRegister(standby.Metrics()...)
	os.Exit(cli.Run(newCommand()))
}
