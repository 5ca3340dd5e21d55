//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"text/template"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// dcgm writes a metric as dcgm-exporter does (internal/pkg/rendermetrics of NVIDIA/dcgm-exporter): of a GPU
// that is partitioned there are series of its GPU instances, of others one. The values tell devices apart.
var dcgm = template.Must(template.New("").Funcs(template.FuncMap{"used": dcgmUsed}).Parse(`
{{- define "series"}}DCGM_FI_DEV_FB_USED{gpu="{{.GPU.Index}}",UUID="{{.GPU.UUID}}",pci_bus_id="{{.GPU.PCIBusID}}",device="nvidia{{.GPU.Minor}}",modelName="{{.GPU.ProductName}}"
{{- if .Instance.Profile}},GPU_I_PROFILE="{{.Instance.Profile}}",GPU_I_ID="{{.Instance.ID}}"{{end}},Hostname="{{.Host}}",DCGM_FI_DRIVER_VERSION="580.95.05"} {{used .GPU .Instance}}
{{end -}}
# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
# TYPE DCGM_FI_DEV_FB_USED gauge
{{range .}}{{template "series" .}}{{end}}`))

// dcgmEntity is a GPU or GPU instance that dcgm-exporter tells of.
type dcgmEntity struct {
	GPU      model.GPUState
	Instance model.InstanceState
	Host     string
}

func dcgmUsed(g model.GPUState, i model.InstanceState) int {
	if i.Profile == "" {
		return 1000 * (g.Index + 1)
	}
	return 1000*(g.Index+1) + i.ID
}

// dcgmPage is what dcgm-exporter would say of the simulated node now.
func (sim simulator) dcgmPage(host string) string {
	sim.Helper()
	state, err := sim.control.State()
	must(sim, err, "ask the simulator")
	var entities []dcgmEntity
	for _, g := range state.GPUs {
		if len(g.Instances) == 0 {
			entities = append(entities, dcgmEntity{GPU: g, Host: host})
		}
		for _, i := range g.Instances {
			entities = append(entities, dcgmEntity{g, i, host})
		}
	}
	var page strings.Builder
	must(sim, dcgm.Execute(&page, entities), "write the page")
	return page.String()
}

// documentedQuery is the line of a page of the documentation that begins with this.
func documentedQuery(t testing.TB, page, start string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	must(t, err, "read the documentation")
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, start) {
			return strings.TrimSpace(line)
		}
	}
	t.Fatalf("docs/%s has no query that begins with %q", page, start)
	return ""
}

// expectAttribution waits until the documented query says of each pod the figure that dcgm-exporter has of its
// device, and of no other pod of its namespace.
func (p prometheus) expectAttribution(namespace string, want map[string]int) {
	p.Helper()
	query := documentedQuery(p, "reference/metrics.md", "mica_claim_device_info * on")
	eventually(p, retryTimeout, "DCGM's figures are attributed to pods", func(ctx context.Context) error {
		var found struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
		if err := p.ask(ctx, "query", query, &found); err != nil {
			return err
		}
		got := map[string]string{}
		for _, series := range found.Result {
			if series.Metric["namespace"] == namespace {
				got[series.Metric["pod"]] += fmt.Sprint(series.Value[1])
			}
		}
		for pod, used := range want {
			if len(got) != len(want) || got[pod] != fmt.Sprint(used) {
				return fmt.Errorf("%s finds %v, want %v", query, got, want)
			}
		}
		return nil
	})
}

// usedBy is what dcgm-exporter says of a pod's only device.
func (s *scenario) usedBy(sim simulator, pod string) int {
	s.Helper()
	d := s.allocated(s.claimOf(s.waitRunning(pod)))[0]
	if !d.ofPartition() {
		return dcgmUsed(sim.gpu(d), model.InstanceState{})
	}
	state, err := sim.control.State()
	must(s, err, "ask the simulator")
	for _, g := range state.GPUs {
		for _, i := range g.Instances {
			if len(i.ComputeInstances) == 1 && i.ComputeInstances[0].UUID == d.uuid {
				return dcgmUsed(g, i)
			}
		}
	}
	s.Fatalf("the simulator has no partition %s", d.uuid)
	return 0
}
