package offer

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2/ktesting"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

// policyRetry is the longest pause of client-go's reflector.
const policyRetry = time.Minute + time.Second

var (
	policyKind      = v1alpha1.GroupVersion.WithResource(v1alpha1.PolicyResource).GroupResource()
	errNotInstalled = apierrors.NewNotFound(policyKind, "")
	errNotAllowed   = apierrors.NewForbidden(policyKind, "", nil)
)

func TestPoliciesThatCannotBeReadAreAskedForAgain(t *testing.T) {
	for name, test := range map[string]struct {
		refusal        error
		known          bool          // at once
		later, knownIn time.Duration // the API server shows policies later, and they are known in that time
	}{
		"not installed":                          {errNotInstalled, true, 24 * time.Hour, policyRetry},
		"installed with the plugin":              {errNotInstalled, true, time.Second / 2, 2 * time.Second},
		"not allowed":                            {errNotAllowed, false, 24 * time.Hour, policyRetry},
		"an API server that has just started":    {errNotAllowed, false, 3 * time.Second, 7 * time.Second}, // the reflector waits up to 6.4 s
		"an API server that is away a long time": {apiserver.ErrAway, false, time.Hour, policyRetry},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, ctx := ktesting.NewTestContext(t)
				policies := apiserver.NewPolicies()
				policies.Put(t, "p", "{shapes: {whole: {}}}")
				policies.Refuse(test.refusal)
				view := newPolicyView(policies, apiserver.New(), fixture.NodeName, func() {})
				fixture.Background(ctx, t, view.run)
				after(0)
				if all, _, known := view.get(); known != test.known || len(all) != 0 {
					t.Errorf("known at once: %t, %d policies", known, len(all))
				}
				after(test.later)
				_, _, known := view.get()
				if want := !errors.Is(test.refusal, apiserver.ErrAway) && (test.known || test.later > rolesPatience); known != want {
					t.Errorf("known after %s: %t", test.later, known)
				}
				policies.Refuse(nil)
				after(test.knownIn)
				if all, _, known := view.get(); !known || len(all) != 1 {
					t.Errorf("known: %t, %d policies", known, len(all))
				}
			})
		})
	}
}

// A restart must not publish the defaults for a moment.
func TestNothingIsPublishedBeforePoliciesAreKnown(t *testing.T) {
	r := newRig(t, "p5.48xlarge", func(o *Options) { o.Policies = apiserver.NewPolicies() })
	ctx, err := r.start(t)
	must(t, err)
	if r.toPublish() != nil || len(r.history.current) != 0 {
		t.Error("something is to be published")
	}
	<-r.Changed()
	must(t, r.offerChanges(ctx))
	if len(r.changed) != 0 {
		t.Error("prepared claims are looked through again although nothing has changed")
	}
	r.follow(t)
	must(t, r.offerChanges(ctx))
	if r.toPublish() == nil {
		t.Error("nothing is to be published")
	}
}

// A refused policy changes nothing. What it lacks may be installed at any time, on nodes without MIG, too.
func TestARefusedPolicyIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var installed atomic.Bool
		policies := apiserver.NewPolicies()
		policies.Put(t, "p", "{shapes: {whole: {}, timeSlice: {replicas: 4}}}")
		r := newRig(t, "g5.12xlarge", func(o *Options) {
			o.Policies = policies
			o.CheckMPS = func() error {
				if installed.Load() {
					return nil
				}
				return errors.New("nvidia-cuda-mps-control is not there")
			}
		})
		r.follow(t)
		r.watch(t)
		after(reportSpread)
		before := r.offered()
		policies.Put(t, "p", "{shapes: {mps: {clients: 2}}}")
		after(reportSpread)
		const refusal = "GPUPolicy p offers MPS, which this node cannot serve: nvidia-cuda-mps-control is not there"
		if got := r.offered(); len(before) != 8 || !slices.Equal(got, before) {
			t.Errorf("got %v, want %v as before", got, before)
		}
		if warned := r.warned(); warned != ReasonRefused+": "+refusal+"; the node keeps its previous offer" {
			t.Errorf("the node's events are %q", warned)
		}
		if got, want := *policies.Node(fixture.NodeName).Policy, (v1alpha1.NodePolicy{Name: "p", UID: "uid-p", ObservedGeneration: 2, Message: refusal}); got != want {
			t.Errorf("the GPUNode has %+v, want %+v", got, want)
		}
		installed.Store(true)
		after(lookInterval)
		if !slices.Contains(r.offered(), "gpu-0-mps") {
			t.Errorf("got %v, without what can be done now", r.offered())
		}
	})
}

// The policy says what a fault means; without one, it keeps further claims away.
func TestAPolicyDecidesTheEffectOfAFault(t *testing.T) {
	policies := apiserver.NewPolicies()
	policies.Put(t, "p", "{shapes: {whole: {}}, health: [{condition: xid, effect: NoExecute}]}")
	r := newRig(t, "g5.12xlarge", func(o *Options) { o.Policies = policies })
	r.health.set(r.machine.GPUs()[0].UUID, health.Fault{Condition: health.XID, Value: "79", Severity: health.Dead},
		health.Fault{Condition: health.Memory, Value: "row-remap-failed", Severity: health.Drain})
	r.follow(t)
	_, err := r.start(t)
	must(t, err)
	if got, want := r.tainted("gpu-0"), []string{"gpu.nvidia.com/xid=79:NoExecute", "mica.gpu/memory=row-remap-failed:NoSchedule"}; !slices.Equal(got, want) {
		t.Errorf("got the taints %v, want %v", got, want)
	}
}
