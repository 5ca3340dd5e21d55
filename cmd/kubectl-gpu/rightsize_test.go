package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
)

// sized is what rightsize prints in a cluster with a p5.48xlarge and the Deployment claims, with a
// Prometheus that answers so.
func sized(t *testing.T, reader client.Reader, prometheus http.HandlerFunc, arguments ...string) (string, error) {
	t.Helper()
	server := httptest.NewServer(prometheus)
	defer server.Close()
	command := newRightsizeCommand(kubeconfig(""), func(clientcmd.ClientConfig) (client.Reader, error) { return reader, nil })
	command.SilenceUsage, command.SilenceErrors = true, true
	command.SetArgs(append([]string{"--prometheus", server.URL}, arguments...))
	var out bytes.Buffer
	command.SetOut(&out)
	err := command.ExecuteContext(t.Context())
	return out.String(), err
}

// withSlices is the cluster of the targets, and a node.
func withSlices(t *testing.T) client.Reader {
	t.Helper()
	builder := inDefault(t, targets)
	for _, s := range nodeSlices(publishedBy(t, "p5.48xlarge", gpu.Policy{Whole: true, MIG: true}), "n1") {
		builder.WithObjects(s)
	}
	return builder.WithIndex(slicesByDriver()).Build()
}

// answering has a value for each of the queries, by a metric in it.
func answering(values map[string]float64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		query := r.FormValue("query")
		for metric, value := range values {
			if strings.Contains(query, metric) {
				_, _ = fmt.Fprintf(w, `{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"pod": "claims-7d9f-abcde", "node": "n1", "device": "gpu-0"}, "value": [1, "%v"]}]}}`, value)
				return
			}
		}
		_, _ = fmt.Fprint(w, `{"status": "success", "data": {"resultType": "vector", "result": []}}`)
	}
}

const gib = 1 << 30

func TestRightsizeNamesASmallerShape(t *testing.T) {
	little := answering(map[string]float64{"memory_used": 5 * gib, "memory_total": 80 * gib, "utilization": 0.05})
	out, err := sized(t, withSlices(t), little, "deployment/claims")
	if exitCode(err) != exitNo {
		t.Errorf("the exit code is %d, of %v", exitCode(err), err)
	}
	fixture.Sentence(t, err, "a smaller shape would do", "1g.10gb")
	fixture.Golden(t, "rightsize.txt", out)
	page, err := os.ReadFile("../../docs/use/rightsize.md")
	if err != nil || !strings.Contains(string(page), out) {
		t.Errorf("docs/use/rightsize.md does not show what is printed (%v)", err)
	}
	if out, err = sized(t, withSlices(t), little, "deployment/claims", "-o", "json"); exitCode(err) != exitNo || !strings.Contains(out, `"verdict": "Fits"`) {
		t.Errorf("as JSON: %v\n%s", err, out)
	}
	busy := answering(map[string]float64{"memory_used": 70 * gib, "memory_total": 80 * gib, "utilization": 0.5})
	if out, err = sized(t, withSlices(t), busy, "deployment/claims", "--over", "1d"); err != nil || !strings.Contains(out, "the smallest that fits; held now") {
		t.Errorf("what is full: %v\n%s", err, out)
	}
}

func TestRightsizeThatCannotBeAnswered(t *testing.T) {
	nothing := answering(nil)
	broken := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }
	endless := func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"status": "success", "data": {"resultType": "vector", "result": [`))
		for range mostPrometheusAnswer / 1024 {
			_, _ = w.Write(bytes.Repeat([]byte(" "), 1024))
		}
		_, _ = w.Write([]byte(`]}}`))
	}
	for name, test := range map[string]struct {
		prometheus http.HandlerFunc
		reader     client.Reader
		arguments  []string
		want       []string
	}{
		"of nothing":            {nothing, withSlices(t), nil, []string{"deployment/NAME"}},
		"of a word":             {nothing, withSlices(t), []string{"llm"}, []string{"names no workload"}},
		"of nobody":             {nothing, withSlices(t), []string{"deployment/nobody"}, []string{"no Deployment/nobody in namespace default"}},
		"as a picture":          {nothing, withSlices(t), []string{"deployment/claims", "-o", "png"}, []string{`-o "png"`, "yaml"}},
		"without an address":    {nothing, withSlices(t), []string{"deployment/claims", "--prometheus", ""}, []string{"--prometheus is to be the URL", "port-forward"}},
		"of a year":             {nothing, withSlices(t), []string{"deployment/claims", "--over", "1y"}, []string{"--over", "from 10m to 90d"}},
		"with a negative":       {nothing, withSlices(t), []string{"deployment/claims", "--reserve", "-1"}, []string{"--reserve is -1"}},
		"without series":        {nothing, withSlices(t), []string{"deployment/claims"}, []string{"no memory of devices of the pods of Deployment/claims", "mica_claim_device_info"}},
		"by another server":     {broken, withSlices(t), []string{"deployment/claims"}, []string{"ask Prometheus at http://127.0.0.1", "shorter --over"}},
		"by one without an end": {endless, withSlices(t), []string{"deployment/claims"}, []string{"ask Prometheus at http://127.0.0.1"}},
		"without devices":       {nothing, withSlices(t), []string{"deployment/claims", "--driver-name", "other"}, []string{"no node offers", "driver other"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := sized(t, test.reader, test.prometheus, test.arguments...)
			if exitCode(err) != exitFailed || out != "" {
				t.Errorf("the exit code is %d, with %q", exitCode(err), out)
			}
			fixture.Sentence(t, err, test.want...)
		})
	}
}
