package driver

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/component-base/metrics"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/account"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/offer"
)

var (
	gpus = metrics.NewDesc("mica_gpus",
		"GPUs of this node, by product, by their worst fault (ok, degraded, drain, dead; unknown before they were asked) and by the recovery action that the NVIDIA driver asks for.",
		[]string{"product", "health", "recovery_action"}, nil, metrics.ALPHA, "")
	offeredDevices = metrics.NewDesc("mica_devices",
		"Devices that this node offers, by type, MIG profile and health; a device in shares counts once.",
		[]string{"type", "profile", "health"}, nil, metrics.ALPHA, "")
	freeDevices = metrics.NewDesc("mica_free_devices",
		"Offered devices that a claim could get now, or a share of default size, as far as this node knows.",
		[]string{"type", "profile"}, nil, metrics.ALPHA, "")
	deviceTaints = metrics.NewDesc("mica_device_taints",
		"Offered devices with a taint, by its key and effect.",
		[]string{"key", "effect"}, nil, metrics.ALPHA, "")
	preparedDevices = metrics.NewDesc("mica_prepared_devices",
		"Devices that prepared claims have, by type and MIG profile; each claim's share of a device counts.",
		[]string{"type", "profile"}, nil, metrics.ALPHA, "")
	journalRecords = metrics.NewDesc("mica_journal_records",
		"Records of claims in the journal, by state (prepared, intent, damaged).",
		[]string{"state"}, nil, metrics.ALPHA, "")
	journalBytes = metrics.NewDesc("mica_journal_size_bytes",
		"Size of the journal's records.",
		nil, nil, metrics.ALPHA, "")
	oldestRecord = metrics.NewDesc("mica_journal_oldest_record_timestamp_seconds",
		"When the oldest record of a state was written, in seconds since 1970; absent where there is none.",
		[]string{"state"}, nil, metrics.ALPHA, "")
)

// census counts the node's GPUs and devices when metrics are scraped, from what the plugin has in
// memory.
type census struct {
	metrics.BaseStableCollector
	state  func() offer.State
	health func(uuid string) health.Record
	holds  func() []account.Hold
	// tallies counts the journal's records as last listed, without reading the disk.
	tallies func() map[journal.State]journal.Tally
}

var _ metrics.StableCollector = (*census)(nil)

// DescribeWithStability implements metrics.StableCollector.
func (*census) DescribeWithStability(into chan<- *metrics.Desc) {
	for _, desc := range []*metrics.Desc{gpus, offeredDevices, freeDevices, deviceTaints, preparedDevices, journalRecords, journalBytes, oldestRecord} {
		into <- desc
	}
}

// CollectWithStability implements metrics.StableCollector.
func (c *census) CollectWithStability(into chan<- metrics.Metric) {
	state, holds := c.state(), c.holds()
	counted := counts{}
	records := map[string]health.Record{}
	for uuid, g := range everyGPU(state) {
		record := c.health(uuid)
		records[uuid] = record
		worst := health.OK
		for _, fault := range record.Faults {
			worst = max(worst, fault.Severity)
		}
		counted.add(gpus, g.ProductName, healthOf(record, worst), record.Action.String())
	}
	for _, shape := range state.Shapes {
		record := records[shape.Physical().UUID]
		severity, _ := record.Of(shape)
		counted.add(offeredDevices, shape.Type(), shape.Form().Profile, healthOf(record, severity))
		name := shape.Name()
		if free(name, shape, state.Taints[name], holds) {
			counted.add(freeDevices, shape.Type(), shape.Form().Profile)
		}
		for _, taint := range state.Taints[name] {
			counted.add(deviceTaints, taint.Key, string(taint.Effect))
		}
	}
	for _, hold := range holds {
		counted.add(preparedDevices, hold.Type, hold.Profile)
	}
	for series, n := range counted {
		into <- metrics.NewLazyConstMetric(series.of, metrics.GaugeValue, float64(n), series.labels[:series.count]...)
	}
	c.collectJournal(into)
}

func (c *census) collectJournal(into chan<- metrics.Metric) {
	tallies, size := c.tallies(), int64(0)
	for _, state := range []journal.State{journal.Prepared, journal.Intent, journal.Damaged} {
		tally := tallies[state]
		size += tally.Bytes
		into <- metrics.NewLazyConstMetric(journalRecords, metrics.GaugeValue, float64(tally.Records), string(state))
		if tally.Records > 0 {
			into <- metrics.NewLazyConstMetric(oldestRecord, metrics.GaugeValue, float64(tally.Oldest.UnixMilli())/1000, string(state))
		}
	}
	into <- metrics.NewLazyConstMetric(journalBytes, metrics.GaugeValue, float64(size))
}

// everyGPU includes lost GPUs, whose devices stay offered.
func everyGPU(state offer.State) map[string]gpu.GPU {
	all := map[string]gpu.GPU{}
	for _, shape := range state.Shapes {
		all[shape.Physical().UUID] = shape.Physical()
	}
	for _, g := range state.Node.GPUs {
		all[g.UUID] = g
	}
	return all
}

func healthOf(record health.Record, severity health.Severity) string {
	if severity == health.OK && record.Reach == health.Unasked {
		return "unknown"
	}
	return severity.String()
}

// free reports whether a claim could get the shape: it has no taint, and no claim holds something that
// overlaps it or, of shares, all of them.
func free(name string, shape gpu.Shape, taints []resourceapi.DeviceTaint, holds []account.Hold) bool {
	if slices.ContainsFunc(taints, func(t resourceapi.DeviceTaint) bool { return t.Effect != resourceapi.DeviceTaintEffectNone }) {
		return false
	}
	form := shape.Form()
	shared := 0.0
	for _, hold := range holds {
		switch {
		case hold.UUID != shape.Physical().UUID || !hold.Placement.Overlaps(form.Placement):
		case hold.Device != name || !form.Shared():
			return false
		default:
			shared += hold.Part
		}
	}
	const rounding = 1e-9
	return shared == 0 || shared+form.DefaultPart() <= 1+rounding
}

// counts are values by metric and labels.
type counts map[series]int

type series struct {
	of     *metrics.Desc
	labels [3]string
	count  int
}

func (c counts) add(of *metrics.Desc, labels ...string) {
	s := series{of: of, count: len(labels)}
	copy(s.labels[:], labels)
	c[s]++
}
