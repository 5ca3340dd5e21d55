package pair

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
	"github.com/mica-gpu/mica/pkg/scaleout/headroom"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// warmPools sets the sizes of the warm pools of which a headroom says anything. Growing comes
// first: EKS does one thing at a time with a group.
func warmPools(s *Situation, result Result) []Action {
	return steer(s, result, func(group *view.Group, h scaleout.Headroom) int {
		return devicesOf(s.View, group, h)
	})
}

// steer goes by how many devices of a headroom an empty node of a group has.
func steer(s *Situation, result Result, devices func(*view.Group, scaleout.Headroom) int) []Action {
	steered := false
	for _, h := range s.View.Headrooms {
		steered = steered || h.Spec.WarmPool != nil
	}
	if !steered {
		return nil
	}
	states := map[string]*view.Group{}
	var pools []headroom.Pool
	for i := range s.View.GroupStates {
		group := &s.View.GroupStates[i]
		name := group.Object.Name
		if modeFor(group) != (direct{}) || group.Template == nil || unavailable(s, group) != "" || s.EKS[name].WarmPool == nil {
			continue
		}
		states[name] = group
		pools = append(pools, headroom.Pool{Group: name, PerNode: func(h string) int { return perNode(s, group, h, devices) }})
	}
	sizes := headroom.WarmPools(s.View.Headrooms, s.View.Headroom, pools)
	var actions []Action
	for _, pool := range pools {
		size, told := sizes[pool.Group]
		n := s.EKS[pool.Group]
		if !told || size == *n.WarmPool || n.Refused != "" || n.Update != "" || n.Status == "UPDATING" || intends(result.Status[pool.Group]) {
			continue
		}
		actions = append(actions, setWarmPool{Group: states[pool.Group].Object, Size: size})
	}
	return actions
}

// intends tells whether EKS is to be called for a group in any case.
func intends(status GroupStatus) bool {
	return slices.ContainsFunc(status.InFlight, func(e v1alpha1.InFlight) bool { return e.ID == IntentID })
}

// perNode finds the headroom of that name.
func perNode(s *Situation, group *view.Group, name string, devices func(*view.Group, scaleout.Headroom) int) int {
	for _, h := range s.View.Headroom {
		if h.Name == name {
			return devices(group, h)
		}
	}
	return 0
}

// devicesOf is how many devices of a headroom an empty node of the group has, as many as are
// wanted at most. What cannot be told counts as none.
func devicesOf(v *view.View, group *view.Group, h scaleout.Headroom) int {
	cluster := fit.New(fit.Facts{Classes: v.Classes, Selectors: v.Selectors})
	machine := cluster.Machine(fit.Node{Object: group.Template.Node, Slices: group.Template.Slices})
	user, err := cluster.Pod(deviceUser(h))
	if err != nil {
		return 0
	}
	most := max(h.Devices, 1) // whether it has any at all is told even while none is wanted
	for n := range most {
		left, miss, err := cluster.Place(context.Background(), machine, user)
		if miss != nil || err != nil {
			return n
		}
		machine = left
	}
	return most
}

// deviceUser is a pod that asks for one device and nothing else, wherever it is.
func deviceUser(h scaleout.Headroom) (*corev1.Pod, []fit.PodClaim) {
	const request = "device"
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "headroom", h.Name, types.UID("headroom/"+h.Name)
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: request, ResourceClaimName: &h.Name}}
	claim := &resourceapi.ResourceClaim{Spec: h.Claim}
	claim.Namespace, claim.Name, claim.UID = pod.Namespace, h.Name, pod.UID
	return pod, []fit.PodClaim{{Name: request, Claim: claim}}
}
