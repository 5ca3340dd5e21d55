package pair

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

func TestNodesAreProtectedForAReason(t *testing.T) {
	annotate := func(c *calling, why string) {
		c.group().Nodes[0].Object.Annotations = map[string]string{v1alpha1.AnnotationScaleDownDisabled: "true"}
		if why != "" {
			c.group().Nodes[0].Object.Annotations[v1alpha1.AnnotationProtected] = why
			view.Hold(c.group().Nodes[0].Object, c.Now)
		}
	}
	kept := func(c *calling) { c.Decision.Headroom = []scaleout.HeadroomDecision{{Nodes: []string{"node-0"}}} }
	stories{
		"a node as others":      {func(c *calling) { c.node(time.Minute, true) }, ""},
		"headroom":              {func(c *calling) { c.node(time.Minute, true); kept(c) }, "keep node node-0 for headroom\n"},
		"headroom kept already": {func(c *calling) { c.node(time.Minute, true); kept(c); annotate(c, forHeadroom) }, ""},
		"headroom moved on":     {func(c *calling) { c.node(time.Minute, true); annotate(c, forHeadroom) }, "let node node-0 be removed again\n"},
		"another client's":      {func(c *calling) { c.node(time.Minute, true); kept(c); annotate(c, "") }, ""},
		"waits for its claim":   {func(c *calling) { c.node(9*time.Minute, true); annotate(c, forClaim) }, ""},
		"waits for its slices":  {func(c *calling) { c.node(19*time.Minute, false); annotate(c, forClaim) }, ""},
		"no pod has come":       {func(c *calling) { c.node(11*time.Minute, true); annotate(c, forClaim) }, "let node node-0 be removed again\n"},
		"no slices have come":   {func(c *calling) { c.node(21*time.Minute, false); annotate(c, forClaim) }, "let node node-0 be removed again\n"},
		"the claim has come": {func(c *calling) {
			c.node(time.Minute, true)
			annotate(c, forClaim)
			c.View.Claims = []*resourceapi.ResourceClaim{allocatedOn("node-0")}
		}, "let node node-0 be removed again\n"},
		"the claim is elsewhere": {func(c *calling) {
			c.node(time.Minute, true)
			annotate(c, forClaim)
			c.View.Claims = []*resourceapi.ResourceClaim{allocatedOn("node-7")}
		}, ""},
		"the claim comes first": {func(c *calling) { c.node(time.Minute, true); annotate(c, forClaim); kept(c) }, ""},
		"and headroom then": {func(c *calling) {
			c.node(time.Minute, true)
			annotate(c, forClaim)
			kept(c)
			c.View.Claims = []*resourceapi.ResourceClaim{allocatedOn("node-0")}
		}, "keep node node-0 for headroom\n"},
		"only observed": {func(c *calling) {
			c.node(time.Minute, true)
			kept(c)
			c.group().Object.Spec.Pairing = v1alpha1.PairingObserve
		}, ""},
		"only observed by now": {func(c *calling) {
			c.node(time.Minute, true)
			kept(c)
			annotate(c, forHeadroom)
			c.group().Object.Spec.Pairing = v1alpha1.PairingObserve
		}, "let node node-0 be removed again\n"},
		"of no group": {func(c *calling) {
			c.View.Nodes = append(c.View.Nodes, scaleout.Node{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-0"}}})
			kept(c)
		}, "keep node node-0 for headroom\n"},
	}.run(t)
}
