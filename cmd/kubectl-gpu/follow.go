package main

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/kubectl/inventory"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
)

// settle is how long changes are gathered before they are printed: a claim's allocation and its pod
// come one after the other.
const settle = 300 * time.Millisecond

// follower keeps what the reader sees up to date.
type follower struct {
	reader fleetReader
	client client.WithWatch
	// seen says what may be seen; its objects are those of the first look.
	seen                  inventory.Seen
	slices, rules, claims toolscache.Store
	changed               chan struct{}
}

// follow prints all, and then what changes, until ctx ends.
func (l *listing) follow(ctx context.Context, c client.WithWatch, r fleetReader) error {
	seen, err := r.read(ctx)
	if err != nil {
		return err
	}
	if err := l.show(seen); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.WithValue(ctx, watcher{}, l.print.note))
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	f := &follower{reader: r, client: c, seen: seen, changed: make(chan struct{}, 1)}
	if err := f.start(ctx, &running); err != nil {
		return err
	}
	before := byGPU(inventory.Of(seen).Only(l.filter))
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.changed:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settle):
		}
		now := inventory.Of(f.current()).Only(l.filter)
		if err := l.showChanges(changes(before, now)); err != nil {
			return err
		}
		before = byGPU(now)
	}
}

// watcher is where a context has the function that tells who watches.
type watcher struct{}

// tellWatcher tells who watches why nothing comes; the library tries again by itself. Other errors that
// libraries handle are returned, too.
func tellWatcher(ctx context.Context, err error, _ string, _ ...any) {
	if tell, watches := ctx.Value(watcher{}).(func(string)); watches {
		tell(fmt.Sprintf("the cluster cannot be watched now, which is tried again: %s", err))
	}
}

// showChanges prints nothing where nothing has changed. YAML needs a line between two documents.
func (l *listing) showChanges(changed inventory.Inventory) error {
	if len(changed.GPUs) == 0 {
		return nil
	}
	if l.print.format == terminal.YAML {
		if _, err := fmt.Fprintln(l.print.out, "---"); err != nil {
			return err
		}
	}
	return l.print.inventory(changed)
}

type gpuKey struct{ driver, pool, name string }

func byGPU(i inventory.Inventory) map[gpuKey]inventory.GPU {
	known := make(map[gpuKey]inventory.GPU, len(i.GPUs))
	for _, g := range i.GPUs {
		known[gpuKey{g.Driver, g.Pool, g.Name}] = g
	}
	return known
}

// changes are the GPUs that are not as they were. One that is gone, or that the filter chooses no
// more, is not among them.
func changes(before map[gpuKey]inventory.GPU, now inventory.Inventory) inventory.Inventory {
	changed := inventory.Inventory{GPUs: []inventory.GPU{}}
	for _, g := range now.GPUs {
		if known, was := before[gpuKey{g.Driver, g.Pool, g.Name}]; !was || !reflect.DeepEqual(known, g) {
			changed.GPUs = append(changed.GPUs, g)
		}
	}
	return changed
}

// start watches what may be seen, and waits until all of it was read.
func (f *follower) start(ctx context.Context, running *sync.WaitGroup) error {
	var synced []toolscache.InformerSynced
	begin := func(object client.Object, list client.ObjectList, transform toolscache.TransformFunc, options ...client.ListOption) toolscache.Store {
		store, controller := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
			ListerWatcher: f.listWatch(list, options), ObjectType: object, Transform: transform,
			Handler: toolscache.ResourceEventHandlerFuncs{
				AddFunc: func(any) { f.wake() }, UpdateFunc: func(any, any) { f.wake() }, DeleteFunc: func(any) { f.wake() },
			},
		})
		running.Go(func() { controller.RunWithContext(ctx) })
		synced = append(synced, controller.HasSynced)
		return store
	}
	if !f.seen.SlicesHidden {
		compactor := devices.NewCompactor()
		f.slices = begin(&resourceapi.ResourceSlice{}, &resourceapi.ResourceSliceList{}, func(object any) (any, error) {
			if slice, is := object.(*resourceapi.ResourceSlice); is {
				compactor.Compact(slice)
			}
			return object, nil
		}, client.MatchingFieldsSelector{Selector: f.reader.sliceFields()})
	}
	if !f.seen.RulesHidden {
		f.rules = begin(&resourceapi.DeviceTaintRule{}, &resourceapi.DeviceTaintRuleList{}, nil)
	}
	if !f.seen.ClaimsHidden {
		f.claims = begin(&resourceapi.ResourceClaim{}, &resourceapi.ResourceClaimList{}, nil, client.InNamespace(f.seen.OfNamespace))
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("read the cluster a second time, to watch it: %w", context.Cause(ctx))
	}
	return nil
}

func (f *follower) wake() {
	select {
	case f.changed <- struct{}{}:
	default: // somebody has been woken already, and has not looked yet
	}
}

func (f *follower) listWatch(empty client.ObjectList, options []client.ListOption) toolscache.ListerWatcher {
	with := func(o metav1.ListOptions) *client.ListOptions {
		asked := (&client.ListOptions{Raw: &o}).ApplyOptions(options)
		asked.Limit, asked.Continue = o.Limit, o.Continue
		return asked
	}
	return toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := empty.DeepCopyObject().(client.ObjectList)
			return list, f.client.List(ctx, list, with(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return f.client.Watch(ctx, empty.DeepCopyObject().(client.ObjectList), with(o))
		},
	}, f.client)
}

// current is what is to be seen now.
func (f *follower) current() inventory.Seen {
	now := inventory.Seen{OfNamespace: f.seen.OfNamespace, SlicesHidden: f.seen.SlicesHidden, ClaimsHidden: f.seen.ClaimsHidden}
	now.Slices = listed[*resourceapi.ResourceSlice](f.slices)
	for _, rule := range listed[*resourceapi.DeviceTaintRule](f.rules) {
		now.Rules = append(now.Rules, *rule)
	}
	for _, claim := range listed[*resourceapi.ResourceClaim](f.claims) {
		now.Holdings = append(now.Holdings, inventory.HoldingsOf(claim, f.reader.driver)...)
	}
	return now
}

// listed is what a store has; nothing, if there is none.
func listed[T any](store toolscache.Store) []T {
	if store == nil {
		return nil
	}
	var objects []T
	for _, object := range store.List() {
		objects = append(objects, object.(T))
	}
	return objects
}
