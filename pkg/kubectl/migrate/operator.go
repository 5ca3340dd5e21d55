package migrate

import (
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// operator is what counts of the GPU Operator's ClusterPolicy (nvidia.com/v1). Other fields are its own.
type operator struct {
	Spec struct {
		DevicePlugin struct {
			Enabled *bool `json:"enabled"`
			Config  struct {
				Name    string `json:"name"`
				Default string `json:"default"`
			} `json:"config"`
		} `json:"devicePlugin"`
		MIG struct {
			Strategy string `json:"strategy"`
		} `json:"mig"`
	} `json:"spec"`
}

func operatorIn(d document) (operator, bool) {
	var o operator
	is := d.kind == "ClusterPolicy" && strings.HasPrefix(d.apiVersion, "nvidia.com/") && yaml.Unmarshal(d.text, &o) == nil
	return o, is
}

// operator says what to do with the GPU Operator's device plugin, which stays while nodes move.
func (m *migration) operator(d document, o operator) {
	if enabled := o.Spec.DevicePlugin.Enabled; enabled == nil || *enabled {
		m.find(d, Look, "spec.devicePlugin", "the GPU Operator's device plugin goes on giving out the GPUs that Mica has, on nodes that have both",
			"move node by node, as kubectl gpu migrate --check says, and set enabled to false after the last")
	}
	if o.Spec.MIG.Strategy == "single" && m.Profile == "" {
		m.find(d, Look, "spec.mig.strategy", "with single, nvidia.com/gpu is a partition on nodes with MIG, and an entire GPU is claimed for it here",
			"migrate again with --mig-profile, such as 1g.10gb, if the workloads run there")
	}
}

// byDefault tells that nodes without the label of a config have the one with this key.
func (m *migration) byDefault(key string) bool {
	return key != "" && slices.ContainsFunc(m.all, func(d document) bool {
		o, is := operatorIn(d)
		return is && o.Spec.DevicePlugin.Config.Default == key
	})
}
