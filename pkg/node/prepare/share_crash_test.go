package prepare

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/mps"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// tools crash at the changes of all of them.
func (m *moments) tools(tools Tools) Tools {
	m.MIG = tools.MIG
	return Tools{MIG: m, Modes: modeMoments{tools.Modes, m}, TimeSlices: sliceMoments{tools.TimeSlices, m}, Daemons: daemonMoments{tools.Daemons, m}}
}

type modeMoments struct {
	Modes
	*moments
}

func (m modeMoments) SetComputeMode(uuid, mode string) error {
	return m.around("SetComputeMode "+mode, func() error { return m.Modes.SetComputeMode(uuid, mode) })
}

type sliceMoments struct {
	TimeSlices
	*moments
}

func (m sliceMoments) Set(ctx context.Context, uuid string, interval gpu.Interval) error {
	return m.around("Set "+string(interval), func() error { return m.TimeSlices.Set(ctx, uuid, interval) })
}

type daemonMoments struct {
	Daemons
	*moments
}

func (m daemonMoments) Start(ctx context.Context, daemon mps.Daemon) error {
	return m.around("Start", func() error { return m.Daemons.Start(ctx, daemon) })
}

func (m daemonMoments) Stop(ctx context.Context, id string) error {
	return m.around("Stop", func() error { return m.Daemons.Stop(ctx, id) })
}

// crashingShare is a claim whose process crashes, perhaps beside another share of the
// same device.
type crashingShare struct {
	devices []string
	config  string
	further bool
	// effects are those before and after which there must be a crash.
	effects []string
}

func (c crashingShare) String() string {
	text := strings.Join(c.devices, " and ")
	if c.config != "" {
		text += " configured"
	}
	if c.further {
		text += " beside another"
	}
	return text
}

func TestACrashAtEachEffectOfAShare(t *testing.T) {
	partition := []string{"SetMIG true", "CreateInstance", "CreateComputeInstance", "DestroyComputeInstance", "DestroyInstance", "SetMIG false"}
	daemon := []string{"Start", "Stop"}
	mode := []string{"SetComputeMode ExclusiveProcess", "SetComputeMode Default"}
	short := object("GpuConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Short"}}`)
	cases := []crashingShare{
		{devices: []string{slicedGPU}, effects: []string{"Set Long", "Set Default"}},
		{devices: []string{servedGPU}, effects: slices.Concat(mode, daemon)},
		{devices: []string{slicedSmall}, effects: partition},
		{devices: []string{servedBig}, effects: slices.Concat(partition, daemon)},
		{devices: []string{slicedSmall, servedBig}, effects: slices.Concat(partition, daemon)},
		{devices: []string{servedBig, servedBig}, effects: slices.Concat(partition, daemon)},
		{devices: []string{several0}, config: short, effects: []string{"Set Short", "Set Default"}},
		{devices: []string{several0}, further: true},
		{devices: []string{slicedGPU}, further: true},
		{devices: []string{servedGPU}, further: true, effects: []string{"Start"}},
		{devices: []string{slicedSmall}, further: true},
		{devices: []string{servedBig}, further: true, effects: []string{"Start"}},
		{devices: []string{slicedSmall, servedBig}, further: true},
		{devices: []string{whole0}, config: short, effects: []string{"Set Short", "Set Default"}},
		{devices: []string{whole0}, config: mpsObject(""), effects: slices.Concat(mode, daemon)},
		{devices: []string{small0, small1}, config: object("MigDeviceConfig", `,"sharing":{"strategy":"MPS"}`), effects: slices.Concat(partition, daemon)},
	}
	for _, c := range cases {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			seen := map[string]bool{}
			for at := 1; ; at++ {
				moment := ""
				for _, next := range afterwards("reconcile", "prepare", "unprepare", "another", "the other goes", "gone") {
					if next == "the other goes" && !c.further {
						continue
					}
					moment = c.crashOnce(t, at, next)
					if t.Failed() {
						t.Fatalf("after a crash at moment %d (%s), then %s", at, moment, next)
					}
				}
				if moment == "" {
					break
				}
				seen[moment] = true
			}
			c.checkSeen(t, seen)
		})
	}
}

// checkSeen makes sure that there were crashes at what the case is about.
func (c crashingShare) checkSeen(t *testing.T, seen map[string]bool) {
	t.Helper()
	for _, effect := range c.effects {
		if !seen["before "+effect] || !seen["after "+effect] {
			t.Errorf("no crash before and after %s: %v", effect, seen)
		}
	}
	if c.further && (seen["before Stop"] || seen["before DestroyInstance"] || seen["before Set Default"]) {
		t.Errorf("what another share needs was undone: %v", seen)
	}
}

func (c crashingShare) crashOnce(t *testing.T, at int, next string) (moment string) {
	t.Helper()
	r := newShareRig(t)
	claim := r.sharing("c", c.devices...)
	if c.config != "" {
		claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{configured(c.config)}
		r.api.put(claim)
	}
	var survivors []*resourceapi.ResourceClaim
	other := r.sharing("other", c.devices...)
	if c.further {
		prepare(t, r.startShares(t, nil), other)
		survivors = append(survivors, other)
	} else {
		r.api.remove(other)
	}
	moment = liveAndCrashShare(t, r, claim, at)
	if next == "gone" || next == "another" {
		r.api.remove(claim)
	}
	p := r.startShares(t, nil)
	switch next {
	case "prepare":
		prepare(t, p, claim)
	case "unprepare":
		unprepare(t, p, claim)
	case "another": // which was allocated because the first is gone
		claim = r.sharing("another", c.devices...)
		if !c.further {
			claim = r.sharing("another", whole0)
		}
		prepare(t, p, claim)
	case "the other goes":
		unprepare(t, p, other)
		r.api.remove(other)
		survivors = nil
	}
	reconcile(t, p)
	// A claim that lives on is prepared, or not at all.
	if slices.Contains(uids(t, r.claimsDir()), string(claim.UID)) {
		survivors = append(survivors, claim)
	} else if next == "prepare" || next == "another" {
		t.Errorf("%s is not prepared", claim.Name)
	}
	c.expect(t, r, p, survivors...)
	for _, survivor := range survivors {
		unprepare(t, p, survivor)
	}
	r.expectShares(t, p)
	return moment
}

// expect checks all but the definitions of the daemons of a configuration.
func (c crashingShare) expect(t *testing.T, r *shareRig, p *Preparer, claims ...*resourceapi.ResourceClaim) {
	t.Helper()
	if c.config == "" {
		r.expectShares(t, p, claims...)
		return
	}
	r.expectMIG(t, p, nil, claims...)
	for _, claim := range claims {
		prepare(t, p, claim)
	}
}

// liveAndCrashShare prepares and unprepares the claim and crashes at a moment, which it
// returns, empty when that many do not come.
func liveAndCrashShare(t *testing.T, r *shareRig, claim *resourceapi.ResourceClaim, at int) (moment string) {
	t.Helper()
	m := &moments{left: at}
	return crashMoment(func() {
		p := r.startShares(t, m.tools, func(o *Options) { o.Phases = m })
		prepare(t, p, claim)
		unprepare(t, p, claim)
	})
}

// Whatever NVML answers about the compute mode, once or for as long as the operation
// lasts, the node is in order afterwards: at once, or with the next attempt.
func TestEachErrorOfTheComputeMode(t *testing.T) {
	for _, failure := range []model.Failure{
		{Function: "nvmlDeviceGetComputeMode"}, {Function: "nvmlDeviceSetComputeMode"}, {Function: "nvmlDeviceSetComputeMode", After: true},
	} {
		for _, code := range errorsOfNVML {
			for _, times := range []int{0, 1} {
				for _, operation := range []string{"prepare", "unprepare"} {
					failure.Times = times
					set(&failure.Return, code)
					t.Run(fmt.Sprintf("%s answers %d, after=%t, times=%d, in %s", failure.Function, code, failure.After, times, operation), func(t *testing.T) {
						t.Parallel()
						failModeOnce(t, failure, operation)
					})
				}
			}
		}
	}
}

func failModeOnce(t *testing.T, failure model.Failure, operation string) {
	t.Helper()
	r, p := runShares(t)
	claim := r.sharing("c", servedGPU)
	if operation == "unprepare" {
		prepare(t, p, claim)
	}
	must(t, r.machine.Fail(failure))
	var err error
	if operation == "prepare" {
		_, err = p.Prepare(shortly(t), claim)
	} else {
		err = p.Unprepare(shortly(t), claim.UID)
	}
	if clearing := r.machine.Clear(); clearing != nil {
		t.Fatal(clearing)
	}
	if err != nil {
		fixture.Sentence(t, err, "claim default/c")
	}
	if operation == "unprepare" {
		unprepare(t, p, claim) // kubelet repeats what failed
	}
	reconcile(t, p)
	if err != nil || operation == "unprepare" {
		r.expectShares(t, p)
	}
	prepare(t, p, claim)
	r.expectShares(t, p, claim)
	unprepare(t, p, claim)
	r.expectShares(t, p)
}
