package pair

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

func TestWarmPoolsAreSteeredWhenNothingElseIsToBeDone(t *testing.T) {
	for name, test := range map[string]struct {
		given  func(*calling)
		result Result
		want   string
	}{
		"to be larger":   {func(*calling) {}, Result{}, "set the warm pool of gpus to 2"},
		"as it is":       {func(c *calling) { c.eks(func(n *view.Nodegroup) { *n.WarmPool = 2 }) }, Result{}, ""},
		"to be smaller":  {func(c *calling) { c.eks(func(n *view.Nodegroup) { *n.WarmPool = 3 }) }, Result{}, "set the warm pool of gpus to 2"},
		"to be empty":    {func(c *calling) { c.View.Headroom[0].Devices = 0; c.eks(func(n *view.Nodegroup) { *n.WarmPool = 3 }) }, Result{}, "set the warm pool of gpus to 0"},
		"there is none":  {func(c *calling) { c.eks(func(n *view.Nodegroup) { n.WarmPool = nil }) }, Result{}, ""},
		"nobody says":    {func(c *calling) { c.View.Headrooms[0].Spec.WarmPool = nil }, Result{}, ""},
		"EKS updates":    {func(c *calling) { c.eks(func(n *view.Nodegroup) { n.Status = "UPDATING" }) }, Result{}, ""},
		"EKS refuses":    {func(c *calling) { c.eks(func(n *view.Nodegroup) { n.Refused = "denied" }) }, Result{}, ""},
		"EKS is away":    {func(c *calling) { c.eks(func(n *view.Nodegroup) { n.Err = errKilled }) }, Result{}, ""},
		"not direct":     {func(c *calling) { c.group().Object.Spec.Pairing = v1alpha1.PairingPlaceholder }, Result{}, ""},
		"no template":    {func(c *calling) { c.group().Template = nil }, Result{}, ""},
		"growing first":  {func(*calling) {}, Result{Status: map[string]GroupStatus{callingGroup: {InFlight: []v1alpha1.InFlight{{ID: IntentID}}}}}, ""},
		"of other nodes": {func(c *calling) { c.View.Headroom[0].Groups = []string{"others"} }, Result{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCalling()
			empty := 0
			c.eks(func(n *view.Nodegroup) { n.WarmPool = &empty })
			c.View.Headrooms = []*v1alpha1.GPUHeadroom{{
				ObjectMeta: metav1.ObjectMeta{Name: "h"},
				Spec:       v1alpha1.GPUHeadroomSpec{WarmPool: &v1alpha1.WarmPool{Max: 9}},
			}}
			c.View.Headroom = []scaleout.Headroom{{Name: "h", Devices: 12}}
			test.given(c)
			actions := steer(&c.Situation, test.result, func(*view.Group, scaleout.Headroom) int { return 8 })
			if got := strings.Trim(fmt.Sprint(actions), "[]"); got != test.want {
				t.Errorf("the actions are %q, want %q", got, test.want)
			}
		})
	}
}
