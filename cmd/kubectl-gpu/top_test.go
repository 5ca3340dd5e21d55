package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/test/fixture"
)

const usagePath = "/api/v1/namespaces/mica/services/mica-controller-metrics:metrics/proxy/usage"

// measuredUsage is the controller's answer about the two claims of smallCluster.
const measuredUsage = `{"nodes": {"n1": {"devices": {
  "gpu-0": {"utilization": 0.75, "memoryUsedBytes": 10737418240, "memoryTotalBytes": 24159191040, "sampled": "2026-10-01T12:00:00Z"},
  "gpu-1": {"utilization": 0, "memoryUsedBytes": 0, "memoryTotalBytes": 24159191040, "sampled": "2026-10-01T12:00:00Z"}}}}}`

func TestTopAsItsUsersSeeIt(t *testing.T) {
	var text strings.Builder
	for _, test := range []struct {
		who       string
		usage     string
		forbidden []string
		arguments []string
	}{
		{"an administrator", measuredUsage, nil, nil},
		{"by namespace", measuredUsage, nil, []string{"namespaces", "--sort-by", "utilization"}},
		{"what is idle", measuredUsage, nil, []string{"--idle"}},
		{"of a namespace", measuredUsage, nil, []string{"-n", "billing", "-o", "json"}},
		{"a tenant", "", []string{"resourceclaims", usagePath}, nil},
		{"without Mica", "", nil, nil},
		{"with another controller", "<html>", nil, nil},
		{"a user without claims", measuredUsage, []string{"resourceclaims", "namespaces/research/resourceclaims"}, nil},
		{"of another's namespace", measuredUsage, []string{"namespaces/billing/resourceclaims"}, []string{"-n", "billing"}},
		{"of nodes", measuredUsage, nil, []string{"nodes"}},
		{"by age", measuredUsage, nil, []string{"--sort-by", "age"}},
	} {
		s := smallCluster(t)
		s.forbidden = test.forbidden
		s.answers = map[string]string{}
		if test.usage != "" {
			s.answers[usagePath] = test.usage
		}
		out, notes, err := s.gpuCommand(t, append([]string{"top"}, test.arguments...)...)
		fmt.Fprintf(&text, "--- %s: kubectl gpu %s\n%s%s", test.who, strings.Join(append([]string{"top"}, test.arguments...), " "), notes, out)
		if err != nil {
			fmt.Fprintf(&text, "error: %s (exit code %d)\n", err, exitCode(err))
		}
	}
	fixture.Golden(t, "top.txt", text.String())
}

// Nodes without claims are not asked.
func TestTopAsksForTheNodesOfClaims(t *testing.T) {
	s := smallCluster(t)
	s.answers = map[string]string{usagePath: measuredUsage}
	if _, _, err := s.gpuCommand(t, "top"); err != nil {
		t.Fatal(err)
	}
	if got := s.asked[len(s.asked)-1].URL.Query()["node"]; fmt.Sprint(got) != "[n1]" {
		t.Errorf("the controller is asked for nodes %v, want [n1]", got)
	}
}
