package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fleet/cloud"
)

// newCluster is client-go's fake with generated names and dry runs.
func newCluster() *fake.Clientset {
	cluster := fake.NewClientset()
	var names atomic.Int64
	cluster.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, isCreate := action.(clienttesting.CreateActionImpl)
		object := create.GetObject()
		if isCreate && len(create.CreateOptions.DryRun) > 0 {
			return true, object, nil
		}
		accessor, err := meta.Accessor(object)
		if err == nil {
			accessor.SetName(fmt.Sprintf("%s%d", accessor.GetGenerateName(), names.Add(1)))
		}
		return false, nil, err
	})
	return cluster
}

func node(name, machine, delay string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-of-" + name), CreationTimestamp: metav1.Now(),
		Annotations: map[string]string{cloud.AnnotationMachine: machine, cloud.AnnotationSliceDelay: delay},
	}}
}

// run runs the plugins until the test ends. It returns their directory.
func run(t *testing.T, cluster *fake.Clientset, whole int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fleet")
	if err != nil {
		t.Fatal(err)
	}
	plugins := New(Options{Driver: fixture.Driver, Client: cluster, Whole: whole, Dir: dir})
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- plugins.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the plugins ended with %v", err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func published(t *testing.T, cluster *fake.Clientset) []resourceapi.ResourceSlice {
	t.Helper()
	list, err := cluster.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// withoutUUIDs removes the attributes that differ between machines.
func withoutUUIDs(devices []resourceapi.Device) []resourceapi.Device {
	for i := range devices {
		delete(devices[i].Attributes, "uuid")
		delete(devices[i].Attributes, "parentUUID")
	}
	return devices
}

func TestANodePublishesWhatThePluginWould(t *testing.T) {
	const machine = "p5.48xlarge"
	for name, whole := range map[string]int{"whole": 1, "lightly": 0} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster()
			run(t, cluster, whole)
			if _, err := cluster.CoreV1().Nodes().Create(t.Context(), node("n1", machine, ""), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			simulated := fixture.Node(t, machine)
			want := slice.Pool(simulated, gpu.Shapes(simulated.GPUs, gpu.ByDefault), nil).Slices
			var got []resourceapi.ResourceSlice
			fixture.Eventually(t, "the slices", func() error {
				if got = published(t, cluster); len(got) != len(want) {
					return fmt.Errorf("%d of %d are there", len(got), len(want))
				}
				return nil
			})
			slices.SortFunc(got, func(a, b resourceapi.ResourceSlice) int { return strings.Compare(a.GenerateName, b.GenerateName) })
			for i, s := range got {
				if *s.Spec.NodeName != "n1" || s.OwnerReferences[0].Kind != "Node" || s.Spec.Pool.Name != "n1" {
					t.Errorf("slice %d is of %s, %+v", i, *s.Spec.NodeName, s.OwnerReferences)
				}
				if !reflect.DeepEqual(withoutUUIDs(s.Spec.Devices), withoutUUIDs(want[i].Devices)) {
					t.Errorf("slice %d has other devices", i)
				}
			}
		})
	}
}

func TestNodesHaveNoGPUInCommon(t *testing.T) {
	one, two := uuids(t, "n1"), uuids(t, "n2")
	if len(one) != 8 || len(two) != 8 {
		t.Fatalf("%d and %d GPUs", len(one), len(two))
	}
	for uuid := range one {
		if two[uuid] {
			t.Errorf("both have %s", uuid)
		}
	}
}

func uuids(t *testing.T, node string) map[string]bool {
	t.Helper()
	opened, err := open("p5.48xlarge", node)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := opened.close(); err != nil {
			t.Error(err)
		}
	}()
	found, unreadable, err := opened.Discover()
	if err != nil || len(unreadable) > 0 {
		t.Fatal(err, unreadable)
	}
	all := map[string]bool{}
	for _, g := range found.GPUs {
		all[g.UUID] = true
	}
	return all
}

func TestAPluginGoesWithItsNode(t *testing.T) {
	cluster := newCluster()
	dir := run(t, cluster, 1)
	if _, err := cluster.CoreV1().Nodes().Create(t.Context(), node("n1", "g4dn.xlarge", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, "the slices", func() error {
		if len(published(t, cluster)) == 0 {
			return errors.New("there are none")
		}
		return nil
	})
	if err := cluster.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, "the end of the plugin", func() error {
		left, err := os.ReadDir(dir)
		if len(left) > 0 {
			return fmt.Errorf("%v is there", left)
		}
		return err
	})
}

func TestNodesWithoutSlices(t *testing.T) {
	cluster := newCluster()
	dir := run(t, cluster, 4)
	for name, other := range map[string]*corev1.Node{
		"never":     node("never", "p5.48xlarge", cloud.Never),
		"later":     node("later", "p5.48xlarge", "1h"),
		"not ours":  {ObjectMeta: metav1.ObjectMeta{Name: "real", UID: "real"}},
		"no number": node("number", "p5.48xlarge", "soon"),
	} {
		if _, err := cluster.CoreV1().Nodes().Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
			t.Fatal(name, err)
		}
	}
	// Nodes are handled in order, so the others were handled before this one.
	if _, err := cluster.CoreV1().Nodes().Create(t.Context(), node("served", "g4dn.xlarge", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, "the slices of one", func() error {
		if len(published(t, cluster)) == 0 {
			return errors.New("there are none")
		}
		return nil
	})
	for _, s := range published(t, cluster) {
		if *s.Spec.NodeName != "served" {
			t.Errorf("%s publishes", *s.Spec.NodeName)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("plugins run in %v, %v", entries, err)
	}
}
