package keda

import (
	"github.com/mica-gpu/mica/pkg/elastic/forecast"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// What is declared here is what those give who know.
var (
	_ Workloads = (*workload.Index)(nil)
	_ Forecast  = (*forecast.Forecast)(nil)
)
