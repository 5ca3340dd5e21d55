package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2/ktesting"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
)

// published are the devices that the API server has of GPU 0, withdrawn ones with
// a minus sign.
func published(t testing.TB, api *apiServer) []string {
	t.Helper()
	var names []string
	for _, slice := range api.slices(t) {
		for _, device := range slice.Spec.Devices {
			if len(device.Taints) > 0 {
				device.Name = "-" + device.Name
			}
			if strings.Contains(device.Name, "gpu-0") && !strings.Contains(device.Name, "mig") {
				names = append(names, device.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func eventually(t *testing.T, api *apiServer, want ...string) {
	t.Helper()
	fixture.Eventually(t, fmt.Sprintf("the devices %q", want), func() error {
		if got := published(t, api); !slices.Equal(got, want) {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
}

func TestAPolicyIsFollowedWithoutARestart(t *testing.T) {
	claim := fixture.Claim("one", fixture.Result("a", "gpu-0"))
	api, policies := newAPIServer(claim), newPolicyServer()
	policies.put(t, "default", "{priority: -1000, shapes: {whole: {}, timeSlice: {replicas: 4}}}")
	o := options(t, api, newHardware(t))
	o.Policies = policies
	d, _ := run(t, o)
	k := register(t, o)
	fixture.Eventually(t, "readiness", d.Ready)
	eventually(t, api, "gpu-0", "gpu-0-timeslice")
	k.prepared(claim)

	policies.put(t, "train", "{nodeSelector: {matchLabels: {pool: train}}, shapes: {mig: {}}}")
	node, err := api.CoreV1().Nodes().Get(t.Context(), fixture.NodeName, metav1.GetOptions{})
	must(t, err)
	node.Labels = map[string]string{"pool": "train"}
	_, err = api.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	must(t, err)
	eventually(t, api, "-gpu-0", "-gpu-0-timeslice")
	fixture.Eventually(t, "the status of both policies", func() error {
		if status := policies.status("train"); status.Applied != 1 || status.Nodes[0].Name != fixture.NodeName {
			return fmt.Errorf("got %+v", status)
		}
		if status := policies.status("default"); status.Applied != 0 || len(status.Nodes) != 0 {
			return fmt.Errorf("got %+v", status)
		}
		return nil
	})
	// What is withdrawn can be prepared: its claim was on its way.
	k.unprepare(claim)
	k.prepared(claim)

	policies.remove("train")
	eventually(t, api, "gpu-0", "gpu-0-timeslice")
}

func TestARefusedPolicyChangesNothingAndSaysSo(t *testing.T) {
	api, policies := newAPIServer(), newPolicyServer()
	policies.put(t, "p", "{shapes: {whole: {}, timeSlice: {replicas: 4}}}")
	o := options(t, api, newHardware(t))
	o.Policies = policies
	o.MPSRoot = t.TempDir()
	o.CheckMPS = func() error { return errors.New("nvidia-cuda-mps-control is not there") }
	run(t, o)
	eventually(t, api, "gpu-0", "gpu-0-timeslice")
	policies.put(t, "p", "{shapes: {mps: {clients: 4}}}")
	var status v1alpha1.GPUPolicyStatus
	fixture.Eventually(t, "the refusal", func() error {
		if status = policies.status("p"); status.Refused != 1 || status.ObservedGeneration != 2 {
			return fmt.Errorf("got %+v", status)
		}
		return nil
	})
	if !strings.Contains(status.Nodes[0].Message, "GPUPolicy p offers MPS, which this node cannot serve: nvidia-cuda-mps-control is not there") || status.Conditions[0].Status != metav1.ConditionFalse {
		t.Errorf("got %+v", status)
	}
	eventually(t, api, "gpu-0", "gpu-0-timeslice")
	fixture.Eventually(t, "the event", func() error {
		list, err := api.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		refused := slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.Reason != reasonRefused })
		if len(refused) != 1 || refused[0].InvolvedObject.Name != fixture.NodeName || refused[0].Count > 1 {
			return fmt.Errorf("got %+v", list.Items)
		}
		return nil
	})
	policies.put(t, "p", "{shapes: {whole: {}}}")
	eventually(t, api, "-gpu-0-timeslice", "gpu-0")
	fixture.Eventually(t, "the refusal's end", func() error {
		if status := policies.status("p"); status.Refused != 0 || status.Applied != 1 {
			return fmt.Errorf("got %+v", status)
		}
		return nil
	})
}

func TestWithoutTheKindNodesOfferTheDefaults(t *testing.T) {
	api, policies := newAPIServer(), newPolicyServer()
	policies.refuse(errNotInstalled)
	o := options(t, api, newHardware(t))
	o.Policies = policies
	run(t, o)
	eventually(t, api, "gpu-0")
}

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
		"installed with the plugin":              {errNotInstalled, true, time.Second / 2, firstPolicyRetry},
		"not allowed":                            {errNotAllowed, false, 24 * time.Hour, policyRetry},
		"an API server that has just started":    {errNotAllowed, false, 3 * time.Second, 5 * time.Second},
		"an API server that is away a long time": {errAway, false, time.Hour, policyRetry},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, ctx := ktesting.NewTestContext(t)
				ctx, cancel := context.WithCancel(ctx)
				policies := newPolicyServer()
				policies.put(t, "p", "{shapes: {whole: {}}}")
				policies.refuse(test.refusal)
				nothing := func() {}
				view := newPolicyView(policies, newAPIServer(), fixture.NodeName, nothing, nothing)
				done := make(chan error, 1)
				go func() { done <- view.run(ctx) }()
				defer func() {
					cancel()
					if err := <-done; !errors.Is(err, context.Canceled) {
						t.Errorf("the view ended with %v", err)
					}
				}()
				after(0)
				if all, _, known := view.get(); known != test.known || len(all) != 0 {
					t.Errorf("known at once: %t, %d policies", known, len(all))
				}
				after(test.later)
				_, _, known := view.get()
				if want := !errors.Is(test.refusal, errAway) && (test.known || test.later > rolesPatience); known != want {
					t.Errorf("known after %s: %t", test.later, known)
				}
				policies.refuse(nil)
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
	api, policies := newAPIServer(), newPolicyServer()
	d, err := New(func() Options {
		o := options(t, api, newHardware(t))
		o.Policies = policies
		return o
	}())
	must(t, err)
	must(t, d.openHardware(t.Context()))
	if d.publisher.get() != nil || len(d.history.current) != 0 {
		t.Error("something is to be published")
	}
	<-d.offered
	must(t, d.offerChanges(t.Context(), d.hardware))
	if len(d.offered) != 0 {
		t.Error("prepared claims are looked through again although nothing has changed")
	}
	must(t, d.policies.policies.Replace(nil, ""))
	must(t, d.policies.node.Replace([]any{&corev1.Node{}}, ""))
	must(t, d.offerChanges(t.Context(), d.hardware))
	if d.publisher.get() == nil {
		t.Error("nothing is to be published")
	}
}

func TestAConflictOfTwoNodesIsTriedAgain(t *testing.T) {
	api, policies := newAPIServer(), newPolicyServer()
	policies.put(t, "p", "{shapes: {whole: {}}}")
	others := 0
	policies.beforeWrite = func() { // another node writes between our read and our write
		policies.mu.Lock()
		defer policies.mu.Unlock()
		if others++; others > 1 {
			return
		}
		changed := policies.policies["p"].DeepCopy()
		changed.Status.Nodes = append(changed.Status.Nodes, v1alpha1.NodeStatus{Name: "other"})
		policies.store(changed)
	}
	o := options(t, api, newHardware(t))
	o.Policies = policies
	run(t, o)
	fixture.Eventually(t, "both entries", func() error {
		if status := policies.status("p"); len(status.Nodes) != 2 || status.Applied != 2 {
			return fmt.Errorf("got %+v", status)
		}
		return nil
	})
	policies.mu.Lock()
	defer policies.mu.Unlock()
	if policies.writes > 3 {
		t.Errorf("%d writes", policies.writes)
	}
}

// What a policy lacked may be installed at any time, on nodes without MIG, too.
func TestARefusedPolicyIsTriedAgain(t *testing.T) {
	o := options(t, newAPIServer(), newHardware(t))
	o.Policies = newPolicyServer()
	o.MPSRoot = t.TempDir()
	missing := errors.New("nvidia-cuda-mps-control is not there")
	o.CheckMPS = func() error { return missing }
	d, err := New(o)
	must(t, err)
	p := v1alpha1.GPUPolicy{Spec: v1alpha1.GPUPolicySpec{Shapes: v1alpha1.Shapes{MPS: &v1alpha1.MPS{Clients: 2}}}}
	must(t, d.policies.policies.Replace([]any{&p}, ""))
	must(t, d.policies.node.Replace([]any{&corev1.Node{}}, ""))
	must(t, d.openHardware(t.Context()))
	nextLook := func() time.Duration { // of a node on which nobody partitions GPUs
		for i := range d.seen.GPUs {
			d.seen.GPUs[i].MIG = gpu.MIGUnsupported
		}
		return d.nextLook()
	}
	if wait := nextLook(); wait != lookInterval {
		t.Errorf("the next look is in %s", wait)
	}
	missing = nil
	must(t, d.offerChanges(t.Context(), d.hardware))
	d.passing.Store(false) // what was offered meanwhile is withdrawn
	if wait := nextLook(); wait <= lookInterval {
		t.Errorf("after it could be done, the next look is in %s", wait)
	}
}
