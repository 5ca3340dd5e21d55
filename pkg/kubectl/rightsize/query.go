package rightsize

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/prometheus/common/model"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

const (
	leastOver, mostOver = 10 * time.Minute, 90 * 24 * time.Hour
	// points are how often the past is looked at. Prometheus looks at multiples of the time between
	// two points, so that a workload younger than step may not be seen.
	points = 2000
	step   = 5 * time.Second
	// mostUses bounds an answer: pods times devices.
	mostUses = 2000
)

// ReadOver reads how much of the past counts, as Prometheus writes times.
func ReadOver(text string) (time.Duration, error) {
	d, err := model.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("the time %q cannot be read: write it as Prometheus does, such as 12h or 7d", text)
	}
	if over := time.Duration(d); over < leastOver || over > mostOver {
		return 0, fmt.Errorf("the time %s is not from %s to %s", text, model.Duration(leastOver), model.Duration(mostOver))
	}
	return time.Duration(d), nil
}

// Queries are PromQL for what the pods of a workload have used of their devices. Their answers have the
// labels node, device and pod.
type Queries struct{ Peak, Total, Busy string }

// QueriesOf are those of the workload's pods, also of those that are gone.
func QueriesOf(target workload.Ref, over time.Duration) Queries {
	every := max((over / points).Round(step), step)
	if every > time.Minute {
		every = every.Round(time.Minute)
	}
	held := fmt.Sprintf("mica_claim_device_info{namespace=%s,pod=~%s}", strconv.Quote(target.Namespace), strconv.Quote(pods(target)))
	of := func(metric, past string) string {
		// Two plugins of a rolling update tell of one device.
		inner := fmt.Sprintf("(max by (node, device) (%s) * on (node, device) group_right () %s)[%s:%s]", metric, held, model.Duration(over), model.Duration(every))
		return fmt.Sprintf("topk(%d, max by (node, device, pod) (%s))", mostUses, fmt.Sprintf(past, inner))
	}
	return Queries{
		Peak:  of("mica_device_memory_used_bytes", "max_over_time(%s)"),
		Total: of("mica_device_memory_total_bytes", "max_over_time(%s)"),
		Busy:  of("mica_device_utilization_ratio", "quantile_over_time(0.95, %s)"),
	}
}

// pods are the names that controllers give: of a Deployment with a ReplicaSet's hash, of a
// StatefulSet with an ordinal, and else with five letters and digits.
func pods(target workload.Ref) string {
	name := regexp.QuoteMeta(target.Name)
	switch target.Kind {
	case workload.KindDeployment:
		return name + "-[a-z0-9]+-[a-z0-9]{5}"
	case workload.KindStatefulSet:
		return name + "-[0-9]+"
	}
	return name + "-[a-z0-9]{5}"
}

// Answers are those to Queries.
type Answers struct{ Peak, Total, Busy model.Vector }

// errUnlabelled is said of a Prometheus that does not scrape as the chart's PodMonitor does.
var errUnlabelled = errors.New("the series have no label node: have Prometheus scrape the plugins by the chart's PodMonitor (podMonitor.enabled), or give their targets this label")

// Uses puts the answers together, by pod and device.
func (a Answers) Uses() ([]Use, error) {
	type id struct{ pod, node, device string }
	of := func(s *model.Sample) id {
		return id{string(s.Metric["pod"]), string(s.Metric["node"]), string(s.Metric["device"])}
	}
	totals, busy := map[id]int64{}, map[id]float64{}
	for _, s := range a.Total {
		totals[of(s)] = int64(s.Value)
	}
	for _, s := range a.Busy {
		busy[of(s)] = float64(s.Value)
	}
	var all []Use
	for _, s := range a.Peak {
		key := of(s)
		if key.node == "" {
			return nil, errUnlabelled
		}
		use := Use{Pod: key.pod, Node: key.node, Device: key.device, PeakBytes: int64(s.Value), TotalBytes: totals[key]}
		if part, ok := busy[key]; ok {
			use.Busy = &part
		}
		all = append(all, use)
	}
	return all, nil
}
