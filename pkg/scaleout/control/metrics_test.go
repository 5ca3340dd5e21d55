package control

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// All series of groups and headroom exist after the first pass. A counter must begin at zero, or a rate misses its first
// event.
func TestGroupsAndHeadroomAreMeasured(t *testing.T) {
	headroom := func(name string, devices int32, selector v1alpha1.Selector) *v1alpha1.GPUHeadroom {
		return &v1alpha1.GPUHeadroom{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.GPUHeadroomSpec{DeviceClassName: driverName, Devices: devices, Selectors: []v1alpha1.Selector{selector}}}
	}
	w := newWorld(t, append(oneGPU(1),
		group("measured", func(g *v1alpha1.GPUNodeGroup) { g.Spec.PricePerHour = ptr.To(resource.MustParse("4.60")) }),
		headroom("two", 2, "true"), headroom("broken", 3, "device.nonsense("))...)
	w.pass()
	expectSeries(t,
		`mica_scaleout_nodes{group="measured",state="complete"} 0`,
		`mica_scaleout_nodes{group="measured",state="incomplete"} 0`,
		`mica_scaleout_node_price_per_hour{group="measured"} 4.6`,
		`mica_scaleout_nodes_total{group="measured",state="unused"} 0`,
		`mica_scaleout_scale_ups_total{group="measured",pairing="placeholder",result="failed"} 0`,
		`mica_scaleout_headroom_devices{headroom="two",state="wanted"} 2`,
		`mica_scaleout_headroom_devices{headroom="two",state="kept"} 0`,
		`mica_scaleout_headroom_devices{headroom="broken",state="wanted"} 3`,
		`mica_scaleout_headroom_devices{headroom="broken",state="kept"} 0`,
	)
	w.run(4 * time.Minute)
	expectSeries(t,
		`mica_scaleout_nodes{group="measured",state="complete"} 1`,
		`mica_scaleout_nodes_total{group="measured",state="come"} 1`,
		`mica_scaleout_headroom_devices{headroom="two",state="kept"} 2`,
	)
}

func expectSeries(t *testing.T, series ...string) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(Metrics()...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range series {
		if !strings.Contains(text.String(), "\n"+want+"\n") {
			t.Errorf("there is no %s in\n%s", want, &text)
		}
	}
}
