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
		Looks:    "the API versions that the API server serves",
		Why:      "Mica publishes ResourceSlices of resource.k8s.io/v1, which Kubernetes serves from 1.34 on unless it is switched off.",
		Fix:      "Upgrade the cluster to Kubernetes 1.34 or newer, or remove resource.k8s.io/v1=false from --runtime-config of kube-apiserver.",
		Source:   "Kubernetes 1.34 release notes; k8s.io/kubernetes/pkg/controlplane/instance.go",
		needs:    []Kind{KindDiscovery},
		find:     resourceAPI,
	}, {
		Name:     "mica-kinds",
		Severity: Error,
		Looks:    "the kinds of mica.gpu that the API server serves, and their fields",
		Why:      "Helm installs CustomResourceDefinitions with a chart and never upgrades them: a kind of a newer version is missing, and a new field is dropped without a word.",
		Fix:      crd.Remedy,
		Source:   "Helm's documentation, Custom Resource Definitions",
		needs:    []Kind{KindDiscovery},
		find:     micaKinds,
	}, {
		Name:     "feature-gates",
		Severity: Warning,
		Looks:    "the feature gates in /metrics of the API server, or else its version; those of other components cannot be seen",
		Why:      "Without a gate, the API server drops fields of ResourceSlices without a word, and the plugin offers less.",
		Fix:      "Add --feature-gates=GATE=true to kube-apiserver, kube-scheduler, kube-controller-manager and every kubelet.",
		Source:   "k8s.io/kubernetes/pkg/features/kube_features.go; KEP-4815, KEP-5004, KEP-5055, KEP-5075",
		needs:    []Kind{KindDiscovery},
		find:     featureGates,
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

// gate is a feature gate that Mica's users miss when it is off.
type gate struct {
	name, lost string
	// since is the version in which it became on by default.
	since    string
	severity Severity
}

var gates = []gate{
	{"DRAPartitionableDevices", "MIG partitions and shares of GPUs are not offered", "1.36", Warning},
	{"DRAConsumableCapacity", "shares of GPUs are not offered", "1.36", Warning},
	{"DRADeviceTaints", "sick GPUs go on being given to claims", "1.36", Warning},
	{"DRAExtendedResource", "pods that ask for nvidia.com/gpu get no device of Mica", "1.36", Warning},
	{"DRADeviceTaintRules", "kubectl gpu cordon cannot keep claims from a GPU", "1.37", Info},
	{"ResourceHealthStatus", "the status of a pod does not say that its GPU is sick", "1.36", Info},
}

func featureGates(f *Facts) []Finding {
	server, err := version.ParseGeneric(f.Version)
	var found []Finding
	for _, g := range gates {
		on, told := f.Gates[g.name]
		message := fmt.Sprintf("The feature gate %s is off: %s.", g.name, g.lost)
		if !told {
			// A gate that is locked may be gone from the metrics.
			on = err != nil || server.AtLeast(version.MustParseGeneric(g.since))
			message = fmt.Sprintf("The feature gate %s is off by default in Kubernetes %s: where it is, %s.", g.name, f.Version, g.lost)
		}
		if !on {
			found = append(found, Finding{Severity: g.severity, Object: "apiserver", Message: message, names: map[string]string{"GATE": g.name}})
		}
	}
	return found
}
