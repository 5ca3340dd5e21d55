package doctor

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/mica-gpu/mica/pkg/crd"
)

func serverChecks() []Check {
	return []Check{{
		Name:     "resource-api",
		Severity: Error,
		Finds:    "The API server does not serve resource.k8s.io/v1, which is on from Kubernetes 1.34. Without it no driver can publish devices.",
		Fix:      "Upgrade the cluster to Kubernetes 1.34 or newer, or remove resource.k8s.io/v1=false from --runtime-config of kube-apiserver.",
		needs:    []Kind{KindDiscovery},
		find:     resourceAPI,
	}, {
		Name:     "mica-kinds",
		Severity: Error,
		Finds:    "The API server lacks a kind of mica.gpu or one of its fields: Helm installs CustomResourceDefinitions and never upgrades them.",
		Fix:      crd.Remedy,
		needs:    []Kind{KindDiscovery},
		find:     micaKinds,
	}, {
		Name:     "feature-gates",
		Severity: Warning,
		Finds:    "A feature gate of the API server is off, so it drops fields of ResourceSlices. Gates of other components cannot be seen.",
		Fix:      "Add --feature-gates=GATE=true to kube-apiserver, kube-scheduler, kube-controller-manager and every kubelet.",
		needs:    []Kind{KindDiscovery},
		find:     featureGates,
	}, {
		Name:     "kubernetes-release",
		Severity: Error,
		Finds:    "The control plane or a kubelet runs a release of Kubernetes with a known fault, which Mica cannot work round. Compatibility lists them.",
		Fix:      "Upgrade PART to VERSION or newer. A distribution may have the fix in an older version: see whether its release notes name the issue.",
		needs:    []Kind{KindNodes, KindSlices, KindDaemonSets, KindClasses, KindPolicies, KindTaintRules},
		find:     knownFaults,
	}}
}

const resourceGroup = "resource.k8s.io/v1"

func resourceAPI(f *Facts) []Finding {
	if f.Served[resourceGroup+" resourceslices"] {
		return nil
	}
	return []Finding{{
		Object:  "apiserver",
		Message: fmt.Sprintf("Kubernetes %s does not serve resource.k8s.io/v1, so no driver can publish a device.", f.Version),
	}}
}

var kinds = []string{"gpupolicies", "gpunodes", "gpunodegroups", "gpuheadrooms", "gpubudgets"}

func micaKinds(f *Facts) []Finding {
	var missing []string
	for _, kind := range kinds {
		if !f.Served["mica.gpu/v1alpha1 "+kind] {
			missing = append(missing, kind)
		}
	}
	if len(missing) > 0 {
		return []Finding{{Object: "apiserver", Message: "The API server does not know " + strings.Join(missing, ", ") + " of mica.gpu/v1alpha1."}}
	}
	if sentence := crd.Sentence(f.Lacking); sentence != "" {
		return []Finding{{Object: "apiserver", Message: sentence}}
	}
	return nil
}

// gate is a feature gate that Mica's users need (k8s.io/kubernetes/pkg/features/kube_features.go).
type gate struct {
	name string
	// lost is what does not work without it.
	lost string
	// since is the version in which it became on by default.
	since    string
	severity Severity
}

var gates = []gate{
	{"DRAPartitionableDevices", "MIG partitions and shares of GPUs are not offered", "1.36", Warning},
	{"DRAConsumableCapacity", "shares of GPUs are not offered", "1.36", Warning},
	{"DRADeviceTaints", "claims still get sick GPUs", "1.36", Warning},
	{"DRAExtendedResource", "pods that ask for nvidia.com/gpu get no device of Mica", "1.36", Warning},
	{"DRADeviceTaintRules", "kubectl gpu cordon cannot keep claims from a GPU", "1.37", Info},
	{"ResourceHealthStatus", "the status of a pod does not report a sick GPU", "1.36", Info},
}

func featureGates(f *Facts) []Finding {
	server, err := version.ParseGeneric(f.Version)
	var found []Finding
	for _, g := range gates {
		on, known := f.Gates[g.name]
		message := fmt.Sprintf("The feature gate %s is off: %s.", g.name, g.lost)
		if !known {
			// The metrics may be forbidden, or the gate locked and no longer among them.
			on = err != nil || server.AtLeast(version.MustParseGeneric(g.since))
			message = fmt.Sprintf("The feature gate %s is off by default in Kubernetes %s: if it is off, %s.", g.name, f.Version, g.lost)
		}
		if !on {
			found = append(found, Finding{Severity: g.severity, Object: "apiserver", Message: message, names: map[string]string{"GATE": g.name}})
		}
	}
	return found
}
