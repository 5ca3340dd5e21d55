package keda

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/test/fixture"
)

const (
	gangTarget = "LeaderWorkerSet.leaderworkerset.x-k8s.io/vllm"
	gangRoom   = "default/" + gangTarget
)

// groups returns n groups of a leader and a worker.
func groups(n int) []workload.Pod {
	var all []workload.Pod
	for group := range n {
		for index := range 2 {
			all = append(all, pod(fmt.Sprintf("g%d-%d", group, index), func(p *workload.Pod) {
				p.Replica, p.Follows = fmt.Sprint(group), index > 0
			}))
		}
	}
	return all
}

// ofGang has replicas of two pods.
func ofGang(pods []workload.Pod, supply scaleout.Supply) *world {
	w := newWorld()
	w.pods, w.supplies[gangRoom] = pods, supply
	w.gang = []workload.Member{
		{Pod: &corev1.Pod{}, Count: 1},
		{Pod: &corev1.Pod{}, Count: 1},
	}
	return w
}

func waitingPods(pods []workload.Pod) []workload.Pod {
	for i := range pods {
		waiting(&pods[i])
	}
	return pods
}

func TestAGangIsCappedInWholeReplicas(t *testing.T) {
	for _, test := range []struct {
		name     string
		pods     []workload.Pod
		supply   scaleout.Supply
		world    func(*world)
		possible float64
	}{
		{"room for some", groups(2), scaleout.Supply{Free: 3}, nil, 5},
		{"those that wait for what is planned", append(groups(1), waitingPods(groups(2)[2:])...), scaleout.Supply{Free: 1}, nil, 3},
		{"those that nothing can be planned for", append(groups(1), waitingPods(groups(2)[2:])...), scaleout.Supply{}, func(w *world) { w.blocked["g1-1"] = true }, 1},
		{"a leader whose worker is to come, with room for the whole", append(groups(1), groups(2)[2]), scaleout.Supply{Free: 1}, nil, 2},
		{"a leader whose worker is to come, without", append(groups(1), groups(2)[2]), scaleout.Supply{}, nil, 2},
		{"leaders that came after the plan", append(groups(1), waitingPods(groups(2)[2:3])...), scaleout.Supply{Free: 1}, func(w *world) { w.unknown["g1-0"] = true }, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := ofGang(test.pods, test.supply)
			if test.world != nil {
				test.world(w)
			}
			got, err := w.metrics(t, map[string]string{"metric": "possibleReplicas", "target": gangTarget})
			if err != nil || got != test.possible {
				t.Errorf("there can be %v, %v, want %v", got, err, test.possible)
			}
		})
	}
}

func TestTheEventHasThePodsPerReplica(t *testing.T) {
	w := ofGang(groups(1), scaleout.Supply{Free: 1, Why: atMaximum})
	w.answers["sum(waiting)"] = 500
	value, err := w.metrics(t, map[string]string{"metric": "prometheus", "target": gangTarget, "query": "sum(waiting)", "threshold": "10"})
	if err != nil || value != 20 {
		t.Errorf("value %v, %v, want 20", value, err)
	}
	if got := strings.Join(w.events(), "\n"); !strings.Contains(got, "devices for 2, each of 2 pods: "+atMaximum) {
		t.Errorf("told %q", got)
	}
	if w.replicas(); w.supplied[gangRoom].Pod != nil || len(w.supplied[gangRoom].Gang) != 2 {
		t.Errorf("room was asked for %+v", w.supplied[gangRoom])
	}
}

// Two groups that are 60 % busy on average are 120 % of one.
func TestDevicesOfAGangAreThoseOfItsReplicas(t *testing.T) {
	w := ofGang(groups(2), scaleout.Supply{})
	w.usage = usage.Usage{Devices: 4, Utilization: usage.Mean{Value: 0.6}}
	got, err := w.metrics(t, map[string]string{"metric": "gpuUtilization", "target": gangTarget, "threshold": "60", "role": "demand"})
	if err != nil || got != 120 {
		t.Errorf("two groups are busy to %v, %v, want 120", got, err)
	}
}

func TestGatesOfAGangAreThoseOfLeaders(t *testing.T) {
	query := map[string]string{"metric": "prometheus", "target": gangTarget, "query": "sum(waiting)", "threshold": "10"}
	w := ofGang(groups(3), scaleout.Supply{Free: 9})
	w.gated, w.answers["sum(waiting)"] = true, 15
	w.settle(t, query)
	if _, err := w.metrics(t, query); err != nil {
		t.Fatal(err)
	}
	if len(w.opened) != 1 || !strings.Contains(w.opened[0], gangTarget+": 3 by") || w.gatedPods != 3 {
		t.Errorf("opened %q of %d pods", w.opened, w.gatedPods)
	}
	w.gang[1].Gated = true
	_, err := w.metrics(t, query)
	fixture.Sentence(t, err, "other pods of "+gangTarget, "template of their own")
}
