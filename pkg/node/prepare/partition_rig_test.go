package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// migRig is a node with a simulated machine of GPUs that can be partitioned.
type migRig struct {
	*rig
	machine *model.Machine
	library *nvml.Library
}

func newMIGRig(t testing.TB) *migRig {
	t.Helper()
	return newMIGRigOf(t, gpuCount)
}

// runMIG returns a node with a running plugin.
func runMIG(t testing.TB) (*migRig, *Preparer) {
	t.Helper()
	r := newMIGRig(t)
	return r, r.startMIG(t, nil)
}

// newMIGRigOf has only the first GPUs, for tests that begin anew so often that it counts.
func newMIGRigOf(t testing.TB, gpus int) *migRig {
	t.Helper()
	return newMIGRigWith(t, gpus, model.Habits{})
}

func newMIGRigWith(t testing.TB, gpus int, habits model.Habits) *migRig {
	t.Helper()
	file := fixture.File(t, "p5.48xlarge")
	file.GPUs, file.Habits = file.GPUs[:gpus], habits
	machine := fixture.Machine(t, file)
	return &migRig{newRig(t), machine, fixture.Library(t, machine)}
}

// startMIG is the start of a plugin process that has found its GPUs. around
// comes between it and the driver.
func (r *migRig) startMIG(t testing.TB, around func(MIG) MIG, changes ...func(*Options)) *Preparer {
	t.Helper()
	p := r.start(t, changes...)
	p.node.Store(nil)
	node := r.free(t, p)
	mig := MIG(r.library)
	if around != nil {
		mig = around(mig)
	}
	p.SetNode(Node{Pool: NewPool(fixture.Driver, fixture.NodeName, gpu.Shapes(node.GPUs, gpu.ByDefault)), Edits: r.edits, Tools: Tools{MIG: mig, Modes: r.library}})
	return p
}

// free is the node without the instances that were made for claims.
func (r *migRig) free(t testing.TB, p *Preparer) gpu.Node {
	t.Helper()
	node, unreadable, err := r.library.Discover()
	must(t, errors.Join(append(unreadable, err)...))
	held, err := p.Held(testContext(t))
	must(t, err)
	for i, g := range node.GPUs {
		node.GPUs[i] = g.Without(func(instance gpu.Instance) bool {
			return slices.ContainsFunc(held, func(d journal.Device) bool { return Made(d, g.UUID, instance) })
		})
	}
	return node
}

// lookAt has the plugin look at the GPUs, as it does from time to time.
func (r *migRig) lookAt(t *testing.T, p *Preparer) {
	t.Helper()
	node, unreadable, err := r.library.Discover()
	must(t, errors.Join(append(unreadable, err, p.Seen(testContext(t), node.GPUs))...))
}

func (r *migRig) uuid(index int) string { return r.machine.GPUs()[index].UUID }

// allocated is a claim that has these devices, a request each.
func (r *migRig) allocated(name string, devices ...string) *resourceapi.ResourceClaim {
	var results []resourceapi.DeviceRequestAllocationResult
	for i, device := range devices {
		results = append(results, fixture.Result(fmt.Sprint("r", i), device))
	}
	claim := fixture.Claim(name, results...)
	r.api.put(claim)
	return claim
}

// foreign is an instance that an administrator has made.
func (r *migRig) foreign(t testing.TB, index int, profile string, start int) model.InstanceState {
	t.Helper()
	must(t, r.machine.SetMIGMode(index, true))
	state, err := r.machine.CreateInstance(index, profile, &start)
	must(t, err)
	return state
}

// instances lists all MIG devices of the machine, and GPU instances without one.
func (r *migRig) instances() []string {
	var all []string
	for _, g := range r.machine.GPUs() {
		for _, instance := range r.machine.Instances(g.Index) {
			text := fmt.Sprintf("%d: %s at %d", g.Index, instance.Profile, instance.Start)
			for _, compute := range instance.ComputeInstances {
				text += " " + compute.UUID
			}
			all = append(all, text)
		}
	}
	return all
}

// expectMIG checks records, CDI files, and that the machine's instances are
// exactly those of the claims and the ones that were there before.
func (r *migRig) expectMIG(t testing.TB, p *Preparer, before []string, claims ...*resourceapi.ResourceClaim) {
	t.Helper()
	r.expect(t, claims...)
	want := slices.Clone(before)
	found, err := p.list(testContext(t))
	must(t, err)
	for _, record := range found.records {
		for _, device := range record.Devices {
			if ours(device) {
				want = append(want, r.describe(t, device))
			}
		}
	}
	got := r.instances()
	slices.Sort(want)
	want = slices.Compact(want) // several claims can have shares of one
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got the instances\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, g := range r.machine.GPUs() {
		enabled, err := r.library.MIGEnabled(g.UUID)
		must(t, err)
		if has := len(r.machine.Instances(g.Index)) > 0; enabled != has {
			t.Errorf("GPU %d: MIG enabled: %t, instances: %t", g.Index, enabled, has)
		}
	}
}

func (r *migRig) describe(t testing.TB, device journal.Device) string {
	t.Helper()
	for _, g := range r.machine.GPUs() {
		if g.UUID != device.UUID {
			continue
		}
		profile, _ := g.Board.MIG.ProfileByID(device.Form.ProfileID)
		return fmt.Sprintf("%d: %s at %d %s", g.Index, profile.Name, device.Form.Start, device.PartUUID)
	}
	t.Fatalf("a record names GPU %s", device.UUID)
	return ""
}

// shortly is a call's budget that is soon used up.
func shortly(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(testContext(t), 250*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// within is an ample budget: a call that fails within it was not to succeed.
func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(testContext(t), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// interference comes between a process and the driver, before instances are made
// and unmade. What it answers is what the driver would.
type interference struct {
	MIG
	create, createCompute, destroy func(profileOrInstance int) error
}

func (i *interference) CreateInstance(uuid string, profileID, start, size int) (int, error) {
	if err := i.create(profileID); err != nil {
		return 0, err
	}
	return i.MIG.CreateInstance(uuid, profileID, start, size)
}

func (i *interference) CreateComputeInstance(uuid string, instance int) (gpu.MIGDevice, error) {
	if err := i.createCompute(instance); err != nil {
		return gpu.MIGDevice{}, err
	}
	return i.MIG.CreateComputeInstance(uuid, instance)
}

func (i *interference) DestroyInstance(uuid string, instance int) error {
	if err := i.destroy(instance); err != nil {
		return err
	}
	return i.MIG.DestroyInstance(uuid, instance)
}

func never(int) error { return nil }
