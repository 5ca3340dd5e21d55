package selftest

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Status is how a check ended.
type Status string

// How checks end. Only Failed is a fault.
const (
	OK      Status = "ok"
	Warning Status = "warning"
	Failed  Status = "failed"
	// Skipped: it was not asked for, or there is nothing to check.
	Skipped Status = "skipped"
)

// worse is the one of two that weighs more.
func (s Status) worse(other Status) Status {
	weights := []Status{Skipped, OK, Warning, Failed}
	if slices.Index(weights, other) > slices.Index(weights, s) {
		return other
	}
	return s
}

// Check is one thing that was looked at.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	// Findings are sentences: what was found and, of a fault, what to do.
	Findings []string `json:"findings,omitempty"`
}

// GPU is one GPU of a report.
type GPU struct {
	Index             int    `json:"index"`
	Minor             int    `json:"minor"`
	UUID              string `json:"uuid"`
	ProductName       string `json:"productName"`
	ComputeCapability string `json:"computeCapability"`
	MemoryMiB         uint64 `json:"memoryMiB,omitempty"`
	PCIBusID          string `json:"pciBusID"`
	NUMANode          *int   `json:"numaNode,omitempty"`
	NVLinkGroup       *int   `json:"nvlinkGroup,omitempty"`
	MIG               string `json:"mig"`
}

// Report is what a self-test found. It has nothing that a bug report may not show: no name
// or address of the node, no environment, no token.
type Report struct {
	// Version is Mica's.
	Version       string  `json:"version"`
	DriverVersion string  `json:"driverVersion,omitempty"`
	CUDAVersion   string  `json:"cudaVersion,omitempty"`
	GPUs          []GPU   `json:"gpus,omitempty"`
	Checks        []Check `json:"checks"`
}

// Count is how many checks ended so.
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

// Print writes the report for people.
func (r *Report) Print(out io.Writer) error {
	fmt.Fprintf(out, "Mica %s", r.Version)
	if r.DriverVersion != "" {
		fmt.Fprintf(out, ", NVIDIA driver %s, CUDA %s", r.DriverVersion, r.CUDAVersion)
	}
	fmt.Fprint(out, "\n\n")
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, check := range r.Checks {
		first := ""
		if len(check.Findings) > 0 {
			first = check.Findings[0]
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", strings.ToUpper(string(check.Status)), check.Name, first)
		for _, finding := range check.Findings[min(1, len(check.Findings)):] {
			fmt.Fprintf(table, "\t\t%s\n", finding)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%d ok, %d warnings, %d failed, %d skipped\n", r.Count(OK), r.Count(Warning), r.Count(Failed), r.Count(Skipped))
	return err
}
