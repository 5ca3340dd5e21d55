package account

import (
	"strconv"

	"k8s.io/component-base/metrics"
)

var (
	claimDevice = metrics.NewDesc("mica_claim_device_info",
		"1 for each device of a prepared claim and each pod that has the claim, with the labels by which DCGM's exporter names the device: UUID is the physical GPU's, GPU_I_ID the GPU instance's.",
		[]string{"namespace", "pod", "claim", "device", "UUID", "GPU_I_ID"}, nil, metrics.ALPHA, "")
	gpuSeconds = metrics.NewDesc("mica_namespace_gpu_seconds_total",
		"GPU-seconds that prepared claims of a namespace have held, by what the device did (busy, idle; unknown where it does not tell); a partition or share counts by its part of a GPU.",
		[]string{"namespace", "state"}, nil, metrics.ALPHA, "")
)

var _ metrics.StableCollector = (*Account)(nil)

// DescribeWithStability implements metrics.StableCollector.
func (a *Account) DescribeWithStability(into chan<- *metrics.Desc) {
	into <- claimDevice
	into <- gpuSeconds
}

// CollectWithStability implements metrics.StableCollector. It holds the lock for a short time.
func (a *Account) CollectWithStability(into chan<- metrics.Metric) {
	a.Settle()
	for _, metric := range a.collect() {
		into <- metric
	}
}

func (a *Account) collect() []metrics.Metric {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []metrics.Metric
	for namespace, sums := range a.spent {
		for i, state := range states {
			all = append(all, metrics.NewLazyConstMetric(gpuSeconds, metrics.CounterValue, sums[i], namespace, state))
		}
	}
	if a.Unnamed {
		return all
	}
	reported := map[[6]string]bool{} // a claim can have two shares of a device; a second series of one name would cost all metrics
	for _, hold := range a.holds {
		for _, pod := range hold.pods() {
			labels := [6]string{hold.Namespace, pod, hold.Claim, hold.Device, hold.UUID, hold.instance()}
			if !reported[labels] {
				reported[labels] = true
				all = append(all, metrics.NewLazyConstMetric(claimDevice, metrics.GaugeValue, 1, labels[:]...))
			}
		}
	}
	return all
}

// pods has an empty name while none is known, so that the claim and its device are reported.
func (h Hold) pods() []string {
	if len(h.Pods) == 0 {
		return []string{""}
	}
	return h.Pods
}

// instance is empty for an entire GPU, as the label that DCGM's exporter leaves out.
func (h Hold) instance() string {
	if h.Placement.Entire() {
		return ""
	}
	return strconv.Itoa(h.Placement.InstanceID)
}
