package standby

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

func pod(name string, gate workload.Gate, change ...func(*workload.Pod)) workload.Pod {
	p := workload.Pod{UID: types.UID("uid-" + name), Name: name, Node: "n", Gate: gate}
	for _, c := range change {
		c(&p)
	}
	return p
}

func on(node string) func(*workload.Pod) { return func(p *workload.Pod) { p.Node = node } }

func TestAsManyServeAsHaveWork(t *testing.T) {
	leaving := func(node string) bool { return node == "drained" }
	for _, test := range []struct {
		name       string
		pods       []workload.Pod
		want       int
		open, wait []string
	}{
		{"none at all", nil, 3, nil, nil},
		{"enough serve", []workload.Pod{pod("a", workload.Open), pod("b", workload.Standby)}, 1, nil, []string{"b"}},
		{"more serve than have work", []workload.Pod{pod("a", workload.Open), pod("b", workload.Open), pod("c", workload.Standby)}, 1, nil, []string{"c"}},
		{"one more", []workload.Pod{pod("a", workload.Open), pod("b", workload.Standby), pod("c", workload.Standby)}, 2, []string{"b"}, []string{"c"}},
		{"more than are loaded", []workload.Pod{pod("a", workload.Closed), pod("b", workload.Standby)}, 5, []string{"b"}, nil},
		{"pods without a gate are ignored", []workload.Pod{pod("a", workload.Ungated), pod("b", workload.Standby)}, 0, nil, []string{"b"}},
		{"fewer than none", []workload.Pod{pod("b", workload.Standby)}, -1, nil, []string{"b"}},
		{"what is being drained does not count", []workload.Pod{pod("a", workload.Open, on("drained")), pod("b", workload.Standby)}, 1, []string{"b"}, nil},
		{"who stays is before who is being drained", []workload.Pod{pod("a", workload.Standby, on("drained")), pod("b", workload.Standby)}, 1, []string{"b"}, []string{"a"}},
		{"a roll-out waits for pods that are Ready", []workload.Pod{
			pod("a", workload.Open), pod("b", workload.Standby, func(p *workload.Pod) { p.Revision = "2" }),
		}, 1, []string{"b"}, nil},
	} {
		open, wait := choose(test.pods, test.want, leaving)
		if !slices.Equal(names(open), test.open) || !slices.Equal(names(wait), test.wait) {
			t.Errorf("%s: opens %q and leaves %q, want %q and %q", test.name, names(open), names(wait), test.open, test.wait)
		}
	}
}

func names(pods []workload.Pod) []string {
	var all []string
	for _, pod := range pods {
		all = append(all, pod.Name)
	}
	return all
}
