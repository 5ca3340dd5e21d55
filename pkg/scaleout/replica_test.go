package scaleout

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// replica NAME: a pod that a workload might add.
func (w *world) replica(names []string, o options) {
	pod := w.pod(names[0], o)
	pod.UID, pod.CreationTimestamp = "", metav1.Time{}
	w.Replicas = append(w.Replicas, Replica{ID: names[0], Pod: pod})
}

// gang NAME of=REPLICA:COUNT,...: a replica of several pods, each like a replica of before.
func (w *world) gang(names []string, o options) {
	gang := Replica{ID: names[0]}
	for _, member := range strings.Split(o["of"], ",") {
		name, count, _ := strings.Cut(member, ":")
		i := slices.IndexFunc(w.Replicas, func(r Replica) bool { return r.ID == name })
		n, err := strconv.Atoi(count)
		if i < 0 || err != nil {
			w.t.Fatalf("gang %s is of %q", names[0], member)
		}
		gang.Gang = append(gang.Gang, Member{Pod: w.Replicas[i].Pod, Count: n})
	}
	w.Replicas = append(w.Replicas, gang)
}

// devices NAME CLASS: a device that a pod might ask for.
func (w *world) devices(names []string, o options) {
	claim := &resourceapi.ResourceClaimSpec{}
	claim.Devices.Requests = []resourceapi.DeviceRequest{{Name: "device", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: names[1], Selectors: selectors(o["cel"])}}}
	w.Replicas = append(w.Replicas, Replica{ID: names[0], Claim: claim})
}

// spread adds what a pod has for and against pods of its application.
func (w *world) spread(pod *corev1.Pod, o options) {
	if o["app"] != "" {
		pod.Labels = map[string]string{"app": o["app"]}
	}
	terms := func(key string) []corev1.PodAffinityTerm {
		return []corev1.PodAffinityTerm{{TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels}}}
	}
	switch {
	case o["apart"] != "":
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(o["apart"])}}
	case o["with"] != "":
		pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(o["with"])}}
	case o["even"] != "":
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: o["even"], WhenUnsatisfiable: corev1.DoNotSchedule}}
	}
}

// replicaWorld has replicas of all sorts, and no group without an end.
func replicaWorld(t *testing.T, seed uint64) *world {
	w := randomWorld(t, seed)
	random := rand.New(rand.NewPCG(seed, 7))
	for i := range w.Groups {
		if g := &w.Groups[i]; g.Max == nil {
			g.Max = ptr.To(g.Size + 3 + random.IntN(3))
		}
	}
	for i := range w.Nodes {
		if random.IntN(2) == 0 {
			g := &w.Groups[random.IntN(len(w.Groups))]
			w.Nodes[i].Group, w.Nodes[i].Starting = g.Name, random.IntN(4) == 0
			g.Size++
			*g.Max++
		}
	}
	for range 3 {
		kind := random.IntN(len(toyPods))
		name := fmt.Sprintf("s%d-%d", kind, len(w.Replicas))
		w.line(fmt.Sprintf("replica %s %s cpu=%d", name, toyPods[kind], 1+random.IntN(3)))
	}
	w.line("replica plain cpu=2")
	if alone := countNaming(w, "common"); alone == 1 {
		// As the only one that names the claim it is put like a pod with a claim of its own; with
		// others, like pods that share: the plans are of different pods.
		w.Replicas = slices.DeleteFunc(w.Replicas, func(s Replica) bool { return names(s.Pod, "common") })
	}
	return w
}

func countNaming(w *world, claim string) int {
	number := 0
	for _, pod := range w.Pending {
		if names(pod, claim) {
			number++
		}
	}
	return number
}

func names(pod *corev1.Pod, claim string) bool {
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimName != nil && *c.ResourceClaimName == claim {
			return true
		}
	}
	return false
}
