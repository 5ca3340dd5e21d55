package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Each release has the faults that its source has, and the doctor names the release to move to.
func TestFaultsOfReleases(t *testing.T) {
	for release, want := range map[string]struct{ kubelet, controlPlane string }{
		"v1.33.9":               {},
		"v1.34.0":               {kubelet: "133920:1.34.2 135901:1.34.4 139772:1.37.0 140212:1.37.0"},
		"v1.34.1-eks-113cf36":   {kubelet: "133920:1.34.2 135901:1.34.4 139772:1.37.0 140212:1.37.0"},
		"v1.34.2":               {kubelet: "135901:1.34.4 139772:1.37.0 140212:1.37.0"},
		"v1.34.4-gke.1829001":   {kubelet: "139772:1.37.0 140212:1.37.0"},
		"v1.35.0+k3s1":          {kubelet: "135901:1.35.1 139772:1.37.0 140212:1.37.0"},
		"v1.35.1":               {kubelet: "139772:1.37.0 140212:1.37.0"},
		"v1.36.1":               {kubelet: "139772:1.37.0 140212:1.37.0", controlPlane: "139034:1.36.2 140431:1.36.3 141290:1.37.2"},
		"v1.36.2":               {kubelet: "139772:1.37.0 140212:1.37.0", controlPlane: "140431:1.36.3 141290:1.37.2"},
		"v1.36.5":               {kubelet: "139772:1.37.0 140212:1.37.0", controlPlane: "141290:1.37.2"},
		"v1.37.0":               {controlPlane: "141290:1.37.2"},
		"v1.37.2":               {},
		"v1.38.0-alpha.2":       {},
		"v2.0.0":                {},
		"a build of a customer": {},
		"":                      {},
	} {
		t.Run(release, func(t *testing.T) {
			var kubelet, controlPlane []string
			for _, fault := range Faults() {
				if to := fault.fix(release); to != "" && fault.Kubelet {
					kubelet = append(kubelet, fmt.Sprintf("%d:%s", fault.Issue, to))
				} else if to != "" {
					controlPlane = append(controlPlane, fmt.Sprintf("%d:%s", fault.Issue, to))
				}
			}
			if got := strings.Join(kubelet, " "); got != want.kubelet {
				t.Errorf("kubelet: got %q, want %q", got, want.kubelet)
			}
			if got := strings.Join(controlPlane, " "); got != want.controlPlane {
				t.Errorf("control plane: got %q, want %q", got, want.controlPlane)
			}
		})
	}
}

// Nodes with one release of kubelet are one finding, and nodes without Mica are none.
func TestFaultyKubeletsAreCounted(t *testing.T) {
	facts := healthy()
	for _, name := range []string{"gpu-2", "gpu-3", "gpu-4", "cpu"} {
		addNode(facts, gpuNode(name))
		facts.Nodes[len(facts.Nodes)-1].Status.NodeInfo.KubeletVersion = "v1.34.1"
	}
	facts.Nodes[3].Status.NodeInfo.KubeletVersion = "v1.34.3"
	facts.Nodes[4].Labels, facts.Slices = nil, facts.Slices[:4]
	var got []string
	for _, f := range Examine(facts).Findings {
		if f.Check == "kubernetes-release" && f.Severity != Info {
			subject, _, _ := strings.Cut(f.Message, ":")
			got = append(got, f.Object+" "+subject)
		}
	}
	want := []string{"node/gpu-2 kubelet on gpu-2 and 1 more node runs v1.34.1", "node/gpu-2 kubelet on gpu-2 and 1 more node runs v1.34.1", "node/gpu-4 kubelet on gpu-4 runs v1.34.3"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// Without an extended resource, or without an eviction, the release that forgets it does no harm.
func TestFaultsThatDoNotConcernAClusterAreNotFound(t *testing.T) {
	for name, set := range map[string]func(*Facts){
		"no eviction": func(*Facts) {},
		"no extended resource": func(f *Facts) {
			f.ExtendedResources = nil
			f.Policies[0].Spec.Health = []v1alpha1.FaultEffect{{Condition: "xid", Effect: "NoExecute"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			facts := healthy()
			facts.Version = "v1.37.1"
			set(facts)
			if report := Examine(facts); len(report.Findings) > 0 {
				t.Errorf("found %+v", report.Findings)
			}
			facts.ExtendedResources = healthy().ExtendedResources
			facts.Policies[0].Spec.Health = []v1alpha1.FaultEffect{{Condition: "xid", Effect: "NoExecute"}}
			if report := Examine(facts); len(report.Findings) != 1 {
				t.Errorf("with both, found %+v", report.Findings)
			}
		})
	}
}
