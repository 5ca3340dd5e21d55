package migrate

import (
	"slices"
	"strings"

	yamlnode "go.yaml.in/yaml/v3"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"
)

// nvidia tells what becomes of a manifest for NVIDIA's DRA driver. It is never changed: Mica has
// the same driver name, classes, attributes and kinds of configurations.
func (m *migration) nvidia(d document) error {
	if strings.HasPrefix(d.apiVersion, "resource.nvidia.com/") {
		m.find(d, Unchanged, "", d.kind+" is of NVIDIA's DRA driver, which goes on serving ComputeDomains beside Mica",
			"keep its chart with resources.gpus.enabled=false")
		return nil
	}
	if d.apiVersion == resourceapi.SchemeGroupVersion.String() {
		if err := m.decodeClaim(d); err != nil {
			return err
		}
	}
	classes := classesIn(d.node)
	gpus := slices.ContainsFunc(classes, func(class string) bool { return strings.HasSuffix(class, ".nvidia.com") })
	if d.kind == "DeviceClass" {
		gpus = strings.Contains(string(d.text), "gpu.nvidia.com")
	}
	if !gpus {
		return nil
	}
	blocked := m.tellClasses(d, classes)
	blocked = m.tellConfigs(d) || blocked
	if d.apiVersion != resourceapi.SchemeGroupVersion.String() {
		m.find(d, Look, "apiVersion", d.apiVersion+" is served by fewer clusters with every release, and Mica needs resource.k8s.io/v1 anyway", "write resource.k8s.io/v1")
	}
	if !blocked {
		m.find(d, Unchanged, "", "it works with Mica as it is", "")
	}
	return nil
}

// decodeClaim decodes strictly what is looked at.
func (m *migration) decodeClaim(d document) error {
	switch d.kind {
	case "ResourceClaim":
		return d.decode(&resourceapi.ResourceClaim{})
	case "ResourceClaimTemplate":
		return d.decode(&resourceapi.ResourceClaimTemplate{})
	case "DeviceClass":
		return d.decode(&resourceapi.DeviceClass{})
	}
	return nil
}

func (m *migration) tellClasses(d document, classes []string) (blocked bool) {
	for _, class := range slices.Compact(slices.Sorted(slices.Values(classes))) {
		switch {
		case class == "vfio.gpu.nvidia.com":
			blocked = true
			m.find(d, Blocked, "deviceClassName", class+": Mica does not offer GPUs to virtual machines", "keep such nodes on NVIDIA's driver")
		case strings.HasPrefix(class, "compute-domain-"):
			m.find(d, Unchanged, "deviceClassName", class+" is of NVIDIA's driver for ComputeDomains, which runs beside Mica", "keep its chart with resources.gpus.enabled=false")
		}
	}
	return blocked
}

// tellConfigs says what differs in configurations for the driver.
func (m *migration) tellConfigs(d document) (blocked bool) {
	for _, parameters := range valuesOf(d.node, "parameters") {
		var p struct {
			Kind    string `json:"kind"`
			Sharing *struct {
				Strategy  string `json:"strategy"`
				MPSConfig *struct {
					MultiUser *bool `json:"multiUser"`
				} `json:"mpsConfig"`
			} `json:"sharing"`
		}
		text, err := encode(parameters)
		if err != nil || yaml.Unmarshal(text, &p) != nil {
			continue // of another driver, or what admission refuses in words
		}
		switch {
		case p.Kind == "VfioDeviceConfig":
			blocked = true
			m.find(d, Blocked, "config", "VfioDeviceConfig: Mica does not offer GPUs to virtual machines", "keep such nodes on NVIDIA's driver")
		case p.Sharing != nil && p.Sharing.Strategy == "MPS":
			m.find(d, Look, "config", "MPS in a claim's configuration shares its GPU among the claim's own pods, and needs the supervisor", "set mps.enabled=true in Mica's chart; for shares between claims ask for mps.nvidia.com")
		case p.Sharing != nil && p.Sharing.Strategy == "TimeSlicing":
			m.find(d, Look, "config", "an interval of time-slices is for the claim's own pods, and Mica needs no feature gate for it", "for shares between claims ask for timeslice.nvidia.com")
		}
	}
	return blocked
}

// valuesOf are the values of a key anywhere below a node.
func valuesOf(node *yamlnode.Node, key string) []*yamlnode.Node {
	var values []*yamlnode.Node
	for i, child := range node.Content {
		if node.Kind == yamlnode.MappingNode && i%2 == 1 && node.Content[i-1].Value == key {
			values = append(values, child)
		}
		values = append(values, valuesOf(child, key)...)
	}
	return values
}
