package migrate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// labelConfig selects one of several configs for a node (k8s-device-plugin, config-manager).
const labelConfig = "nvidia.com/device-plugin.config"

// config is one of the device plugin's: a file, or a key of a ConfigMap.
type config struct {
	document
	// key is that in the ConfigMap, and the value of labelConfig; empty for a file.
	key  string
	text string
	// of is the decoded text, once readConfigs has run.
	of pluginConfig
}

// pluginConfig has the fields of version v1 (NVIDIA/k8s-device-plugin, api/config/v1, v0.20).
// What is of no consequence here is decoded all the same: an unknown field is an error.
type pluginConfig struct {
	Version   string                     `json:"version"`
	Flags     pluginFlags                `json:"flags"`
	Resources map[string]json.RawMessage `json:"resources"`
	Sharing   struct {
		TimeSlicing *replicated `json:"timeSlicing"`
		MPS         *replicated `json:"mps"`
	} `json:"sharing"`
	Imex *struct {
		ChannelIDs []int `json:"channelIDs"`
		Required   bool  `json:"required"`
	} `json:"imex"`
}

type pluginFlags struct {
	MIGStrategy             string                     `json:"migStrategy"`
	FailOnInitError         *bool                      `json:"failOnInitError"`
	MPSRoot                 *string                    `json:"mpsRoot"`
	DriverRoot              *string                    `json:"nvidiaDriverRoot"`
	DevRoot                 *string                    `json:"nvidiaDevRoot"`
	GDRCopyEnabled          *bool                      `json:"gdrcopyEnabled"`
	GDSEnabled              *bool                      `json:"gdsEnabled"`
	MOFEDEnabled            *bool                      `json:"mofedEnabled"`
	UseNodeFeatureAPI       *bool                      `json:"useNodeFeatureAPI"`
	DeviceDiscoveryStrategy *string                    `json:"deviceDiscoveryStrategy"`
	Plugin                  map[string]json.RawMessage `json:"plugin"`
	GFD                     map[string]json.RawMessage `json:"gfd"`
}

type replicated struct {
	RenameByDefault            bool                 `json:"renameByDefault"`
	FailRequestsGreaterThanOne *bool                `json:"failRequestsGreaterThanOne"`
	Resources                  []replicatedResource `json:"resources"`
}

type replicatedResource struct {
	Name     string          `json:"name"`
	Rename   string          `json:"rename"`
	Devices  json.RawMessage `json:"devices"`
	Replicas int64           `json:"replicas"`
}

// The fields of flags.plugin and flags.gfd.
var (
	pluginFields = []string{"passDeviceSpecs", "deviceListStrategy", "deviceIDStrategy", "cdiAnnotationPrefix", "nvidiaCTKPath", "containerDriverRoot", "sharedDevicesAllocationPolicy", "cdiFeatureFlags"}
	gfdFields    = []string{"oneshot", "noTimestamp", "sleepInterval", "outputFile", "machineTypeFile"}
)

// sharedBy is how replicas of a resource share a device.
type sharedBy int

const (
	timeSlices sharedBy = iota
	clients
)

// share is what a replica of a resource is.
type share struct {
	by sharedBy
	// replicas of a device; 0 where nothing tells.
	replicas int64
	// one tells that nobody may ask for more than one.
	one bool
}

// meaning is what the device plugin's resources stand for.
type meaning struct {
	shared map[string]share
	// ambiguous has, by resource, why it cannot be told.
	ambiguous map[string]string
	// profile is the MIG profile that nvidia.com/gpu stands for.
	profile string
}

// configsIn are the configs of the device plugin that a document is or has.
func configsIn(d document) []config {
	switch {
	case d.node == nil:
	case d.plain():
		return []config{{document: d, text: string(d.text)}}
	case d.kind == "ConfigMap" && d.apiVersion == "v1":
		var of struct {
			Data map[string]string `json:"data"`
		}
		if yaml.Unmarshal(d.text, &of) != nil {
			return nil
		}
		var configs []config
		for _, key := range slices.Sorted(maps.Keys(of.Data)) {
			if looksLikeConfig(of.Data[key]) {
				configs = append(configs, config{document: d, key: key, text: of.Data[key]})
			}
		}
		return configs
	}
	return nil
}

// plain tells a config that is a file of its own.
func (d document) plain() bool {
	return d.kind == "" && d.apiVersion == "" && get(d.node, "version") != nil
}

func looksLikeConfig(text string) bool {
	var fields map[string]any
	if yaml.Unmarshal([]byte(text), &fields) != nil || fields["version"] != "v1" {
		return false
	}
	for _, key := range []string{"flags", "sharing", "resources", "imex"} {
		if _, has := fields[key]; has {
			return true
		}
	}
	return false
}

// readConfigs decodes the configs, and says what resources mean by them.
func (m *migration) readConfigs() error {
	for i := range m.configs {
		c := &m.configs[i]
		if err := decodeStrictly([]byte(c.text), &c.of); err != nil {
			return bad(c.source, c.line, "the device plugin's config %s cannot be read: %w", c.title(), shortened(err))
		}
		if err := c.of.check(); err != nil {
			return bad(c.source, c.line, "the device plugin's config %s: %w", c.title(), err)
		}
	}
	if m.Config != "" && !slices.Contains(m.keys(), m.Config) {
		return BadInput{fmt.Errorf("no manifest has a config %s of the device plugin: name one of %s, or leave --config out", m.Config, cmp.Or(strings.Join(m.keys(), ", "), "a ConfigMap that you give with -f"))}
	}
	return nil
}

// meaning says what the device plugin's resources stand for on nodes with these labels.
func (m *migration) meaning(nodeSelector map[string]string) meaning {
	in := m.configs
	for _, name := range []string{m.Config, nodeSelector[labelConfig]} {
		if slices.Contains(m.keys(), name) {
			in = slices.DeleteFunc(slices.Clone(m.configs), func(c config) bool { return c.key != name })
		}
	}
	of := meaningOf(in)
	of.profile = m.Profile
	return of
}

func (m *migration) keys() []string {
	keys := []string{}
	for _, c := range m.configs {
		if c.key != "" {
			keys = append(keys, c.key)
		}
	}
	return keys
}

func (c config) title() string {
	if c.key == "" {
		return "in " + c.source
	}
	return c.name() + "[" + c.key + "]"
}

func (p pluginConfig) check() error {
	if p.Version != "v1" {
		return fmt.Errorf("version %q is not known: the device plugin has v1 only", p.Version)
	}
	if !slices.Contains([]string{"", "none", "single", "mixed"}, p.Flags.MIGStrategy) {
		return fmt.Errorf("flags.migStrategy %q is not known: write none, single or mixed", p.Flags.MIGStrategy)
	}
	for field, of := range map[string]struct {
		is    map[string]json.RawMessage
		known []string
	}{
		"flags.plugin": {p.Flags.Plugin, pluginFields},
		"flags.gfd":    {p.Flags.GFD, gfdFields},
		"resources":    {p.Resources, []string{"gpus", "mig"}},
	} {
		for key := range of.is {
			if !slices.Contains(of.known, key) {
				return fmt.Errorf("%s.%s is not known: the device plugin has %s", field, key, strings.Join(of.known, ", "))
			}
		}
	}
	for field, r := range map[string]*replicated{"timeSlicing": p.Sharing.TimeSlicing, "mps": p.Sharing.MPS} {
		if r == nil {
			continue
		}
		for i, of := range r.Resources {
			if of.Name == "" || of.Replicas < 1 {
				return fmt.Errorf("sharing.%s.resources[%d] needs a name, and replicas of at least 1", field, i)
			}
		}
	}
	return nil
}

// sharing is what is shared, and how: MPS comes before time-slices (api/config/v1/sharing.go).
func (p pluginConfig) sharing() map[string]share {
	r, by := p.Sharing.TimeSlicing, timeSlices
	if p.Sharing.MPS != nil {
		r, by = p.Sharing.MPS, clients
	}
	shared := map[string]share{}
	if r == nil {
		return shared
	}
	for _, of := range r.Resources {
		name := of.full()
		if of.Replicas < 2 {
			continue
		}
		if r.RenameByDefault {
			name += suffixShared
		}
		// With MPS, one is the most unless the config says otherwise (NewConfig).
		one := by == clients
		if r.FailRequestsGreaterThanOne != nil {
			one = *r.FailRequestsGreaterThanOne
		}
		shared[name] = share{by: by, replicas: of.Replicas, one: one}
	}
	return shared
}

// full has the prefix that the device plugin adds.
func (r replicatedResource) full() string {
	if strings.Contains(r.Name, "/") {
		return r.Name
	}
	return "nvidia.com/" + r.Name
}

// meaningOf is what all configs agree upon that have a say in a resource.
func meaningOf(configs []config) meaning {
	m := meaning{shared: map[string]share{}, ambiguous: map[string]string{}}
	first := map[string]config{}
	for _, c := range configs {
		sharing := c.of.sharing()
		for name, s := range sharing {
			earlier, seen := first[name]
			if was := m.shared[name]; seen && was.by != s.by {
				m.ambiguous[name] = differ(name, earlier, c)
			} else {
				s.replicas, s.one = max(s.replicas, was.replicas), s.one && (was.one || !seen)
			}
			m.shared[name] = s
			if !seen {
				first[name] = c
			}
		}
	}
	for name, c := range first {
		for _, other := range configs {
			if _, shares := other.of.sharing()[name]; !shares && other.of.gives(name) {
				m.ambiguous[name] = differ(name, c, other)
			}
		}
	}
	return m
}

// gives tells whether nodes of the config can have a resource that it does not share.
func (p pluginConfig) gives(name string) bool {
	switch {
	case strings.HasSuffix(name, suffixShared):
		return false
	case strings.HasPrefix(name, resourceMIG):
		return p.Flags.MIGStrategy == "mixed"
	}
	return true
}

func differ(name string, a, b config) string {
	return fmt.Sprintf("%s is not the same in the device plugin's configs %s and %s: name the config of the nodes on which this runs with --config", name, a.title(), b.title())
}

// policies makes a GPUPolicy per config, and says what of it has no place there.
func (m *migration) policies(configs []config) []any {
	var made []any
	for _, c := range configs {
		c = m.configs[slices.IndexFunc(m.configs, func(of config) bool { return of.source == c.source && of.line == c.line && of.key == c.key })]
		shapes, blocked := c.of.shapes()
		for _, b := range blocked {
			m.find(c.document, Blocked, c.field(b.field), b.what, b.do)
		}
		m.tellFlags(c)
		if len(blocked) > 0 {
			continue
		}
		policy := c.policy(shapes, m.byDefault(c.key))
		if m.has("GPUPolicy", "", policy.Name) {
			m.find(c.document, Unchanged, c.field(""), "GPUPolicy/"+policy.Name+" says the same for Mica, and is here already", "")
			continue
		}
		if c.plain() {
			m.find(c.document, Look, c.field(""), "it is no object of Kubernetes, and so is not among the manifests that are printed", "give it again when you migrate more")
		}
		made = append(made, policy)
		m.find(c.document, Moved, c.field(""), "GPUPolicy/"+policy.Name+" says the same for Mica", "")
	}
	return made
}

// has tells whether the sources have an object already.
func (m *migration) has(kind, namespace, name string) bool {
	return slices.ContainsFunc(m.all, func(d document) bool { return d.kind == kind && d.namespace == namespace && d.object == name })
}

func (c config) field(of string) string {
	switch {
	case c.key == "":
		return of
	case of == "":
		return "data[" + c.key + "]"
	}
	return "data[" + c.key + "]: " + of
}

// priorityByDefault is below that of policies for nodes with a label, and above that of the chart's.
const priorityByDefault = -1

func (c config) policy(shapes v1alpha1.Shapes, byDefault bool) *v1alpha1.GPUPolicy {
	name := "device-plugin"
	var selector metav1.LabelSelector
	if c.key != "" {
		name = "device-plugin-" + label(c.key, 50)
		if len(validation.IsValidLabelValue(c.key)) == 0 && !byDefault {
			selector.MatchLabels = map[string]string{labelConfig: c.key}
		}
	}
	policy := &v1alpha1.GPUPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.GPUPolicySpec{NodeSelector: selector, Shapes: shapes}}
	if byDefault {
		policy.Spec.Priority = priorityByDefault
	}
	policy.APIVersion, policy.Kind = v1alpha1.GroupVersion.String(), "GPUPolicy"
	return policy
}
