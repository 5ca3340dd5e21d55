package control

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

var (
	planSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "mica_scaleout_plan_duration_seconds",
		Help:    "Time that one plan took, without reading the cluster.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
	})
	passSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "mica_scaleout_pass_duration_seconds",
		Help:    "Time that one pass took: reading, planning, acting and reporting.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 17),
	})
	pendingPods = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "mica_scaleout_pending_pods",
		Help: "Pending pods that ask for devices, by what they wait for (FitsNode, FitsStarting, NeedsNode, Advised, Blocked, Held, Unused, OverBudget).",
	}, []string{"outcome"})
	oldestPending = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "mica_scaleout_oldest_pending_pod_timestamp_seconds",
		Help: "When the oldest of the pending pods that ask for devices was created, by what they wait for.",
	}, []string{"outcome"})
	demandedNodes = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "mica_scaleout_demanded_nodes",
		Help: "Nodes that pending claims and headroom need beyond those that exist or are coming, by GPUNodeGroup.",
	}, []string{"group"})
	verdicts = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "mica_scaleout_verdicts",
		Help: "Kinds of pending pods times GPUNodeGroups, by the first filter that an empty node of the group does not pass; Fits if it passes all, Blocked if the group may not grow.",
	}, []string{"reason"})
	scaleUps = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "mica_scaleout_scale_ups_total",
		Help: "Nodes that were asked for (result begun) and scale-ups that failed (result failed), by GPUNodeGroup and pairing.",
	}, []string{"group", "pairing", "result"})
	allocatedSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "mica_scaleout_pending_to_allocated_seconds",
		Help:    "Time from the creation of a pod that had to wait for a new node until it has one.",
		Buckets: []float64{15, 30, 60, 120, 180, 240, 300, 420, 600, 900, 1200, 1800, 3600},
	})
	templateErrors = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "mica_scaleout_template_errors",
		Help: "1 for each GPUNodeGroup without a template (UnknownTemplate), or with a live node that differs from it (LiveNodeDiffers).",
	}, []string{"group", "reason"})
	stuckNodes = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "mica_scaleout_stuck_nodes",
		Help: "Nodes that keep the startup taint for longer than they should, by GPUNodeGroup (empty for a node of none): DaemonSets that do not tolerate the taint have no pod there (DaemonSetsKeptOff), or they lack something else (NodeIncomplete).",
	}, []string{"group", "reason"})
	nodesNow = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "mica_scaleout_nodes",
		Help: "Live nodes of a GPUNodeGroup that offer all devices of its template (state complete), and those that do not (incomplete).",
	}, []string{"group", "state"})
	nodePrice = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "mica_scaleout_node_price_per_hour",
		Help: "pricePerHour of a GPUNodeGroup. A group without a price has no series.",
	}, []string{"group"})
	headroomDevices = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "mica_scaleout_headroom_devices",
		Help: "Devices that a GPUHeadroom wants free now (state wanted), and those of them that are free (kept).",
	}, []string{"headroom", "state"})
)

// Metrics are the collectors of a process with a Loop.
func Metrics() []prometheus.Collector {
	return []prometheus.Collector{planSeconds, passSeconds, pendingPods, oldestPending, demandedNodes, verdicts, scaleUps, allocatedSeconds, nodesCame, templateErrors, stuckNodes,
		nodesNow, nodePrice, headroomDevices}
}

func measurePending(v *view.View, d scaleout.Decision) {
	pendingPods.Reset()
	for _, outcome := range []scaleout.Outcome{scaleout.FitsNode, scaleout.FitsStarting, scaleout.NeedsNode, scaleout.Advised, scaleout.Blocked,
		scaleout.Held, scaleout.Unused, scaleout.OverBudget} {
		pendingPods.WithLabelValues(string(outcome))
	}
	created := make(map[types.UID]int64, len(v.Pending))
	for _, pod := range v.Pending {
		created[pod.UID] = pod.CreationTimestamp.Unix()
	}
	oldest := map[scaleout.Outcome]int64{}
	for _, kind := range d.Kinds {
		for _, pod := range kind.Pods {
			pendingPods.WithLabelValues(string(pod.Outcome)).Inc()
			since, known := created[pod.UID]
			if before, found := oldest[pod.Outcome]; known && (!found || since < before) {
				oldest[pod.Outcome] = since
			}
		}
	}
	oldestPending.Reset()
	for outcome, since := range oldest {
		oldestPending.WithLabelValues(string(outcome)).Set(float64(since))
	}
}

// measure sets all gauges anew, so that a deleted group has no series.
func (l *Loop) measure(v *view.View, d scaleout.Decision) {
	measurePending(v, d)
	verdicts.Reset()
	for _, kind := range d.Kinds {
		for _, fit := range kind.Groups {
			verdicts.WithLabelValues(verdict(fit)).Inc()
		}
	}
	measureGroups(v.GroupStates)
	measureHeadroom(v, d)
	stuckNodes.Reset()
	for _, stuck := range l.gate.Stuck() {
		stuckNodes.WithLabelValues(stuck.Group, stuck.Reason).Inc()
	}
	for _, growth := range d.Growth {
		demandedNodes.WithLabelValues(growth.Group).Add(float64(len(growth.Nodes)))
	}
	l.waiting.observe(v, d, l.Clock.Now())
	l.arrivals = l.arrivals.observe(v, l.Clock.Now(), l.arrivals == nil)
}

func measureGroups(groups []view.Group) {
	for _, gauge := range []*prometheus.GaugeVec{demandedNodes, templateErrors, nodesNow, nodePrice} {
		gauge.Reset()
	}
	for _, state := range groups {
		name := state.Object.Name
		demandedNodes.WithLabelValues(name).Set(0)
		if reason := templateError(state); reason != "" {
			templateErrors.WithLabelValues(name, reason).Set(1)
		}
		complete, incomplete := nodesNow.WithLabelValues(name, "complete"), nodesNow.WithLabelValues(name, "incomplete")
		for _, node := range state.Nodes {
			if node.Complete() {
				complete.Inc()
			} else {
				incomplete.Inc()
			}
		}
		if price := state.Object.Spec.PricePerHour; price != nil {
			nodePrice.WithLabelValues(name).Set(price.AsFloat64Slow())
		}
		// Counters begin at zero, so that a rate includes the first failure.
		for _, result := range []string{"begun", "failed"} {
			scaleUps.WithLabelValues(name, string(state.Object.Spec.Pairing), result)
		}
		for _, became := range []string{"come", "used", "unused"} {
			nodesCame.WithLabelValues(name, became)
		}
	}
}

// measureHeadroom counts spec.devices as wanted by an invalid headroom.
func measureHeadroom(v *view.View, d scaleout.Decision) {
	headroomDevices.Reset()
	set := func(name string, wanted, kept int) {
		headroomDevices.WithLabelValues(name, "wanted").Set(float64(wanted))
		headroomDevices.WithLabelValues(name, "kept").Set(float64(kept))
	}
	for i, object := range v.Headrooms {
		set(object.Name, v.Headroom[i].Devices, d.Headroom[i].Free)
	}
	for _, object := range v.RefusedHeadrooms {
		set(object.Name, int(object.Spec.Devices), 0)
	}
}

func verdict(fit scaleout.GroupFit) string {
	switch {
	case fit.Miss != nil:
		return string(fit.Miss.Reason)
	case fit.Blocked != "":
		return "Blocked"
	default:
		return "Fits"
	}
}

func templateError(state view.Group) string {
	if state.Template == nil {
		return v1alpha1.ReasonUnknownTemplate
	}
	for _, node := range state.Nodes {
		if node.Complete() && node.Difference != "" {
			return v1alpha1.ReasonLiveNodeDiffers
		}
	}
	return ""
}

// waiting are the pods that wait for a new node, with their time of creation. They are lost with the process, which costs a
// few samples of a histogram.
type waiting map[types.UID]time.Time

func (w waiting) observe(v *view.View, d scaleout.Decision, now time.Time) {
	w.observeBound(v, now)
	created := map[types.UID]time.Time{}
	for _, pod := range v.Pending {
		created[pod.UID] = pod.CreationTimestamp.Time
	}
	for uid := range w {
		if _, pending := created[uid]; !pending {
			delete(w, uid) // it was deleted without a node
		}
	}
	for _, kind := range d.Kinds {
		for _, pod := range kind.Pods {
			if pod.Outcome == scaleout.NeedsNode || pod.Outcome == scaleout.FitsStarting {
				w[pod.UID] = created[pod.UID]
			}
		}
	}
}

// observeBound measures the waiting pods that are bound now.
func (w waiting) observeBound(v *view.View, now time.Time) {
	if len(w) == 0 {
		return
	}
	for _, node := range v.Nodes {
		for _, pod := range node.Pods {
			if since, waited := w[pod.UID]; waited {
				allocatedSeconds.Observe(max(now.Sub(since), 0).Seconds())
				delete(w, pod.UID)
			}
		}
	}
}
