package diagnosis

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// Status is the result of a check.
type Status string

// Results of checks. Only Failed is a fault.
const (
	OK      Status = "ok"
	Warning Status = "warning"
	Failed  Status = "failed"
	// Skipped: the check was not requested, or does not apply.
	Skipped Status = "skipped"
)

// worse returns the more serious of two results.
func (s Status) worse(other Status) Status {
	weights := []Status{Skipped, OK, Warning, Failed}
	if slices.Index(weights, other) > slices.Index(weights, s) {
		return other
	}
	return s
}

// Check is one check of a self-test.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	// Findings are sentences: a fact and, for a fault, what to do.
	Findings []string `json:"findings,omitempty"`
}

// GPU describes one GPU.
type GPU struct {
	Index             int         `json:"index"`
	Minor             int         `json:"minor"`
	UUID              string      `json:"uuid"`
	ProductName       string      `json:"productName"`
	ComputeCapability string      `json:"computeCapability"`
	MemoryMiB         uint64      `json:"memoryMiB,omitempty"`
	PCIBusID          string      `json:"pciBusID"`
	NUMANode          *int        `json:"numaNode,omitempty"`
	NVLinkGroup       *int        `json:"nvlinkGroup,omitempty"`
	MIG               string      `json:"mig"`
	ECC               *bool       `json:"ecc,omitempty"`
	Partitions        []Partition `json:"partitions,omitempty"`
	// Fabric is "ready" for a GPU that needs none.
	Fabric string `json:"fabric"`
}

// Partition is a GPU instance with its MIG devices.
type Partition struct {
	Profile  string   `json:"profile"`
	Instance int      `json:"instance"`
	Slices   string   `json:"memorySlices"`
	Devices  []string `json:"devices,omitempty"`
}

var migModes = map[gpu.MIGMode]string{gpu.MIGUnsupported: "unsupported", gpu.MIGDisabled: "disabled", gpu.MIGEnabled: "enabled"}

func describe(g gpu.GPU) GPU {
	d := GPU{
		Index: g.Index, Minor: g.Minor, UUID: g.UUID, ProductName: g.ProductName, ComputeCapability: g.ComputeCapability,
		MemoryMiB: g.MemoryBytes >> 20, PCIBusID: g.PCIBusID, NUMANode: g.NUMANode, NVLinkGroup: g.NVLinkGroup,
		MIG: migModes[g.MIG], ECC: g.ECCEnabled, Fabric: "ready",
	}
	if g.Fabric != gpu.FabricReady {
		d.Fabric = string(g.Fabric)
	}
	for _, instance := range g.Instances {
		p := Partition{
			Profile: fmt.Sprintf("profile %d", instance.ProfileID), Instance: instance.ID,
			Slices: fmt.Sprintf("%d-%d", instance.Start, instance.Start+instance.Size-1),
		}
		if i := slices.IndexFunc(g.Profiles, func(profile gpu.Profile) bool { return profile.ID == instance.ProfileID }); i >= 0 {
			p.Profile = g.Profiles[i].Name
		}
		for _, mig := range instance.Devices {
			p.Devices = append(p.Devices, mig.UUID)
		}
		d.Partitions = append(d.Partitions, p)
	}
	return d
}

// Report is the result of a self-test. It can be published: it has no name or address of the
// node, no environment and no token.
type Report struct {
	// Version is Mica's.
	Version       string  `json:"version"`
	DriverVersion string  `json:"driverVersion,omitempty"`
	CUDAVersion   string  `json:"cudaVersion,omitempty"`
	GPUs          []GPU   `json:"gpus,omitempty"`
	Checks        []Check `json:"checks"`
}

// Count returns the number of checks with a result.
func (r *Report) Count(status Status) int {
	count := 0
	for _, check := range r.Checks {
		if check.Status == status {
			count++
		}
	}
	return count
}

func (r *Report) add(name string, status Status, findings ...string) {
	r.Checks = append(r.Checks, Check{Name: name, Status: status, Findings: findings})
}

// Printers write a report, by output format.
var Printers = map[string]func(io.Writer, *Report) error{
	"text": printText,
	"json": func(out io.Writer, r *Report) error {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	},
	"yaml": func(out io.Writer, r *Report) error {
		content, err := yaml.Marshal(r)
		if err == nil {
			_, err = out.Write(content)
		}
		return err
	},
}

func printText(out io.Writer, r *Report) error {
	fmt.Fprintf(out, "Mica %s", r.Version)
	if r.DriverVersion != "" {
		fmt.Fprintf(out, ", NVIDIA driver %s, CUDA %s", r.DriverVersion, r.CUDAVersion)
	}
	fmt.Fprint(out, "\n\n")
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, check := range r.Checks {
		findings := strings.Join(check.Findings, "\n\t\t")
		fmt.Fprintf(table, "%s\t%s\t%s\n", strings.ToUpper(string(check.Status)), check.Name, findings)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%d ok, %d warnings, %d failed, %d skipped\n", r.Count(OK), r.Count(Warning), r.Count(Failed), r.Count(Skipped))
	return err
}

// counted counts values in the order of their first appearance.
type counted struct {
	order []string
	times map[string]int
}

func (c *counted) add(value string) {
	if c.times == nil {
		c.times = map[string]int{}
	}
	if c.times[value]++; c.times[value] == 1 {
		c.order = append(c.order, value)
	}
}

// list is such as "8 gpu", "200 mig".
func (c *counted) list() []string {
	var parts []string
	for _, value := range c.order {
		parts = append(parts, fmt.Sprintf("%d %s", c.times[value], value))
	}
	return parts
}

func (c *counted) String() string { return strings.Join(c.list(), ", ") }
