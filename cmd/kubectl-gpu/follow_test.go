package main

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/kubectl/inventory"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/test/fixture"
)

// printedSoFar is what was written so far.
type printedSoFar struct {
	lock sync.Mutex
	text bytes.Buffer
}

func (p *printedSoFar) Write(text []byte) (int, error) {
	p.lock.Lock()
	defer p.lock.Unlock()
	return p.text.Write(text)
}

func (p *printedSoFar) taken() string {
	p.lock.Lock()
	defer p.lock.Unlock()
	return p.text.String()
}

// listsFirst tells client-go's reflector to list first: the fake sends no initial events.
type listsFirst struct {
	client.WithWatch
	// watches counts those that have begun; nil: nobody asks. What comes between list and watch is lost
	// at the fake, and at no API server.
	watches *atomic.Int32
}

func (listsFirst) IsWatchListSemanticsUnSupported() bool { return true }

func (c listsFirst) Watch(ctx context.Context, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
	begun, err := c.WithWatch.Watch(ctx, list, options...)
	if c.watches != nil && err == nil {
		c.watches.Add(1)
	}
	return begun, err
}

// For programs, each change is a document of its own, and what changes no GPU is none.
func TestChangesAreDocuments(t *testing.T) {
	for format, want := range map[terminal.Format]string{
		terminal.YAML:    "---\ngpus:\n- ",
		terminal.JSON:    "{\n  \"gpus\": [\n    {",
		terminal.Tabular: "NODE",
	} {
		var out bytes.Buffer
		l := &listing{print: printer{out: &out, notes: &out, format: format}}
		if err := l.showChanges(inventory.Inventory{GPUs: []inventory.GPU{}}); err != nil || out.Len() > 0 {
			t.Errorf("%s: without a change: %v: %s", format, err, &out)
		}
		if err := l.showChanges(inventory.Inventory{GPUs: []inventory.GPU{{Node: "n1", Name: "gpu-0"}}}); err != nil || !strings.HasPrefix(out.String(), want) {
			t.Errorf("%s: %v: %s", format, err, &out)
		}
	}
}

// mayNotListClaims refuses as the API server does, in every namespace.
type mayNotListClaims struct{ listsFirst }

func (c mayNotListClaims) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, is := list.(*resourceapi.ResourceClaimList); is {
		return apierrors.NewForbidden(resourceapi.Resource("resourceclaims"), "", nil)
	}
	return c.listsFirst.List(ctx, list, options...)
}

// Who may list no claims at all watches the GPUs, and does not wait for claims for ever.
func TestGPUsAreWatchedWithoutClaims(t *testing.T) {
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithIndex(slicesByDriver())
	for _, s := range nodeSlices(publishedBy(t, "g5.12xlarge", gpu.Policy{Whole: true}), "n1") {
		builder.WithObjects(s)
	}
	c := mayNotListClaims{listsFirst{WithWatch: builder.Build()}}
	r := fleetReader{reader: c, driver: fixture.Driver, namespace: "default"}
	seen, err := r.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	f := &follower{reader: r, client: c, seen: seen, changed: make(chan struct{}, 1)}
	var running sync.WaitGroup
	if err := f.start(ctx, &running); err != nil {
		t.Error(err)
	} else if now := f.current(); len(now.Slices) == 0 || !now.ClaimsHidden {
		t.Errorf("got %d slices, claims hidden: %t", len(now.Slices), now.ClaimsHidden)
	}
	stop()
	running.Wait()
}

// Who watches is shown all GPUs, and then those that change.
func TestGPUsThatChangeAreListed(t *testing.T) {
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	slices := nodeSlices(publishedBy(t, "g5.12xlarge", gpu.Policy{Whole: true}), "n1")
	builder := fake.NewClientBuilder().WithScheme(scheme).
		WithIndex(&resourceapi.ResourceSlice{}, resourceapi.ResourceSliceSelectorDriver, func(o client.Object) []string { return []string{o.(*resourceapi.ResourceSlice).Spec.Driver} })
	var items []runtime.Object
	for _, s := range slices {
		builder.WithObjects(s.DeepCopy())
		items = append(items, s)
	}
	c := listsFirst{builder.Build(), &atomic.Int32{}}
	out := &printedSoFar{}
	l := &listing{driver: fixture.Driver, print: printer{out: out, notes: out, format: terminal.Tabular}}
	r := fleetReader{reader: c, driver: fixture.Driver, namespace: "default", sliceAnswers: func(context.Context, metav1.ListOptions) ([]byte, error) {
		return encodePage("resourceslices", items, ""), nil
	}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.follow(ctx, c, r) }()
	says := func(what string) {
		t.Helper()
		err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
			return strings.Contains(out.taken(), what), nil
		})
		if err != nil {
			t.Fatalf("%q is not printed:\n%s", what, out.taken())
		}
	}
	says("gpu-3")
	if err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return c.watches.Load() == 3, nil // slices, rules and claims
	}); err != nil {
		t.Fatalf("%d kinds are watched, want 3", c.watches.Load())
	}
	result := fixture.Result("gpu", "gpu-2")
	result.Pool = "n1"
	claim := fixture.Claim("train", result)
	if err := c.Create(ctx, claim); err != nil {
		t.Fatal(err)
	}
	says("claim default/train")
	if changed := out.taken()[strings.LastIndex(out.taken(), "NODE"):]; strings.Contains(changed, "gpu-1") || !strings.Contains(changed, "gpu-2") {
		t.Errorf("more is printed than has changed:\n%s", changed)
	}
	if err := c.Delete(ctx, claim); err != nil {
		t.Fatal(err)
	}
	if err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return strings.Count(out.taken(), "free") == 5, nil
	}); err != nil {
		t.Fatalf("that the GPU is free again is not printed:\n%s", out.taken())
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
