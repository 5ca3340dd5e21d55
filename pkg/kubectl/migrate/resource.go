package migrate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	yamlnode "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The device plugin's resources.
const (
	resourceGPU = "nvidia.com/gpu"
	resourceMIG = "nvidia.com/mig-"
	// suffixShared is that of shared resources with renameByDefault.
	suffixShared = ".shared"
)

// DeviceClasses of Mica's chart.
const (
	classWhole        = "gpu.nvidia.com"
	classMIG          = "mig.nvidia.com"
	classTimeSlice    = "timeslice.nvidia.com"
	classMPS          = "mps.nvidia.com"
	classMIGTimeSlice = "mig-timeslice.nvidia.com"
	classMIGMPS       = "mig-mps.nvidia.com"
)

// ask is what a limit of a container means: devices of a class, or a part of one in shares.
type ask struct {
	resource string
	class    string
	// profile selects MIG partitions; empty for entire GPUs.
	profile string
	devices int64
	// shares of one device in time-slices; 0 where the claim gets a share of default size, or
	// the entire device.
	shares int64
}

// alike tells whether two containers ask for devices of one kind.
func (a ask) alike(b ask) bool { return a.class == b.class && a.profile == b.profile }

// isGPU tells a resource of NVIDIA's device plugin.
func isGPU(name string) bool {
	return name == resourceGPU || name == resourceGPU+suffixShared || strings.HasPrefix(name, resourceMIG)
}

// partition is the name of a MIG resource: the device plugin writes the profile with . for +
// (k8s-device-plugin, internal/lm/mig-strategy.go). Compute instances begin with <n>c.
var partition = regexp.MustCompile(`^([1-9]\d*g\.[1-9]\d*gb)((?:[.-][a-z]+)*)$`)

// profileOf is what nvidia-smi calls a MIG resource's profile.
func profileOf(name string) (string, error) {
	text := strings.TrimSuffix(strings.TrimPrefix(name, resourceMIG), suffixShared)
	if regexp.MustCompile(`^[1-9]\d*c\.`).MatchString(text) {
		return "", fmt.Errorf("%s is a compute instance within a partition, and Mica gives out entire partitions: ask for a partition of the size that the container needs", name)
	}
	parts := partition.FindStringSubmatch(text)
	if parts == nil {
		return "", fmt.Errorf("%s names no MIG profile: write it as the device plugin does, such as nvidia.com/mig-1g.10gb", name)
	}
	suffix := parts[2]
	if strings.HasPrefix(suffix, ".") {
		suffix = "+" + suffix[1:]
	}
	return parts[1] + suffix, nil
}

// amount is the number of a limit.
func amount(quantity resource.Quantity) (int64, error) {
	n, whole := quantity.AsInt64()
	if !whole || n < 0 || n > 1024 {
		return 0, fmt.Errorf("%s is no number of devices: write a whole number from 0 to 1024", quantity.String())
	}
	return n, nil
}

// limitsOf are a container's limits of GPUs, by name. An error is what Kubernetes would refuse.
func limitsOf(c corev1.Container) (map[string]int64, error) {
	limits := map[string]int64{}
	for name, quantity := range c.Resources.Limits {
		if !isGPU(string(name)) {
			continue
		}
		n, err := amount(quantity)
		if err != nil {
			return nil, fmt.Errorf("the limit %s: %w", name, err)
		}
		limits[string(name)] = n
	}
	for name, quantity := range c.Resources.Requests {
		if !isGPU(string(name)) {
			continue
		}
		limit, has := limits[string(name)]
		if n, err := amount(quantity); err != nil || !has || n != limit {
			return nil, fmt.Errorf("the request %s: %s is not the limit, and Kubernetes refuses such a pod: set the limit, and leave the request out", name, quantity.String())
		}
	}
	return limits, nil
}

// asksOf is what a container asks for, by the name of the resource, and what cannot move.
func (m meaning) asksOf(limits map[string]int64) ([]ask, error) {
	names := make([]string, 0, len(limits))
	for name := range limits {
		names = append(names, name)
	}
	slices.Sort(names)
	var asks []ask
	for _, name := range names {
		if limits[name] == 0 {
			continue
		}
		a, err := m.ask(name, limits[name])
		if err != nil {
			return nil, err
		}
		asks = append(asks, a)
	}
	return asks, nil
}

// ask says what a number of a resource means.
func (m meaning) ask(name string, n int64) (ask, error) {
	if m.ambiguous[name] != "" {
		return ask{}, fmt.Errorf("%s", m.ambiguous[name])
	}
	a := ask{resource: name, class: classWhole, devices: n}
	switch {
	case strings.HasPrefix(name, resourceMIG):
		profile, err := profileOf(name)
		if err != nil {
			return ask{}, err
		}
		a.class, a.profile = classMIG, profile
	case m.profile != "":
		a.class, a.profile = classMIG, m.profile
	}
	s, shared := m.shared[name]
	if !shared && strings.HasSuffix(name, suffixShared) {
		s = share{by: timeSlices} // of which the config was not given
		shared = true
	}
	if !shared {
		return a, nil
	}
	return a.inShares(s)
}

// inShares makes n devices into n shares of one device: devices of one request are different
// ones, and the device plugin's replicas of one GPU are not.
func (a ask) inShares(s share) (ask, error) {
	n := a.devices
	a.devices = 1
	partition := a.profile != ""
	switch s.by {
	case timeSlices:
		a.class = map[bool]string{false: classTimeSlice, true: classMIGTimeSlice}[partition]
	case clients:
		a.class = map[bool]string{false: classMPS, true: classMIGMPS}[partition]
	}
	switch {
	case n == 1:
		return a, nil
	case s.one:
		return ask{}, fmt.Errorf("%s: %d is more than 1, which the device plugin's failRequestsGreaterThanOne refuses: write 1, or ask for a GPU of the container's own", a.resource, n)
	case s.by == clients:
		return ask{}, fmt.Errorf("%s: %d shares under MPS have no size in Mica: write 1, or a claim of %s with the memory and cores that the container needs", a.resource, n, a.class)
	case s.replicas > 0 && n > s.replicas:
		return ask{}, fmt.Errorf("%s: %d is more than the %d replicas of one GPU: for several GPUs write a claim of %s with a request per GPU", a.resource, n, s.replicas, a.class)
	}
	a.shares = n
	return a, nil
}

// String is the ask in words.
func (a ask) String() string {
	text := "1 device of " + a.class
	switch {
	case a.shares > 0:
		text = fmt.Sprintf("%d shares of 1 device of %s", a.shares, a.class)
	case a.devices > 1:
		text = fmt.Sprintf("%d devices of %s", a.devices, a.class)
	}
	if a.profile != "" {
		text += " with the profile " + a.profile
	}
	return text
}

// resourcesIn are the device plugin's resources that are keys anywhere in a document, sorted.
func resourcesIn(node *yamlnode.Node) []string {
	found := map[string]bool{}
	var walk func(*yamlnode.Node)
	walk = func(n *yamlnode.Node) {
		for i, child := range n.Content {
			if n.Kind == yamlnode.MappingNode && i%2 == 0 && isGPU(child.Value) {
				found[child.Value] = true
			}
			walk(child)
		}
	}
	walk(node)
	names := make([]string, 0, len(found))
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// CheckProfile is an error for what is no MIG profile; empty is none.
func CheckProfile(profile string) error {
	if profile == "" || regexp.MustCompile(`^[1-9]\d*g\.[1-9]\d*gb([+-][a-z]+(\.[a-z]+)*)*$`).MatchString(profile) {
		return nil
	}
	return fmt.Errorf("%q is no MIG profile: write it as nvidia-smi does, such as 1g.10gb", profile)
}
