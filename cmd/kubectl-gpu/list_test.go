package main

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

// nodeSlices are what a node of this machine publishes.
func nodeSlices(published []resourceapi.ResourceSliceSpec, node string) []*resourceapi.ResourceSlice {
	var all []*resourceapi.ResourceSlice
	for i := range published {
		s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05d-gpu.nvidia.com-%s", i, node)}, Spec: published[i]}
		s.Spec.Driver, s.Spec.NodeName = fixture.Driver, &node
		s.Spec.Pool = resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: int64(len(published))}
		all = append(all, s)
	}
	return all
}

func publishedBy(t testing.TB, machine string, policy gpu.Policy) []resourceapi.ResourceSliceSpec {
	t.Helper()
	facts := fixture.Node(t, machine)
	var specs []resourceapi.ResourceSliceSpec
	for _, s := range slice.Pool(facts, gpu.Shapes(facts.GPUs, func(gpu.GPU) gpu.Policy { return policy }), nil).Slices {
		specs = append(specs, resourceapi.ResourceSliceSpec{Devices: s.Devices, SharedCounters: s.SharedCounters})
	}
	return specs
}

// smallCluster has two nodes of four A10G, and a claim in each of two namespaces.
func smallCluster(t *testing.T) *apiServer {
	t.Helper()
	s := newAPIServer(t)
	published := publishedBy(t, "g5.12xlarge", gpu.Policy{Whole: true, TimeSlicing: &gpu.TimeSlicing{Replicas: 4}})
	for _, node := range []string{"n1", "n2"} {
		for _, published := range nodeSlices(published, node) {
			s.items["resourceslices"] = append(s.items["resourceslices"], published)
		}
	}
	for i, namespace := range []string{"research", "billing"} {
		result := fixture.Result("gpu", fmt.Sprint("gpu-", i))
		result.Pool = "n1"
		claim := fixture.Claim("train", result)
		claim.Namespace = namespace
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "train-0", UID: "1"}}
		s.items["resourceclaims"] = append(s.items["resourceclaims"], claim)
		s.items["namespaces/"+namespace+"/resourceclaims"] = []runtime.Object{claim}
	}
	return s
}

// gpuCommand runs a command line against a server.
func (s *apiServer) gpuCommand(t testing.TB, arguments ...string) (out, notes string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command := newCommand()
	command.SetArgs(append(arguments, s.flags(t)...))
	command.SetOut(&stdout)
	command.SetErr(&stderr)
	err = command.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

func TestListAsItsUsersSeeIt(t *testing.T) {
	var text strings.Builder
	for _, test := range []struct {
		who       string
		forbidden []string
		arguments []string
	}{
		{"an administrator", nil, nil},
		{"an administrator, of a namespace", nil, []string{"-n", "billing"}},
		{"an administrator, what is free of a node", nil, []string{"--free", "--node", "n1", "-o", "wide"}},
		{"a tenant with slices", []string{"resourceclaims", "devicetaintrules"}, nil},
		{"a tenant", []string{"resourceslices", "resourceclaims", "devicetaintrules"}, nil},
		{"a user without claims", []string{"resourceclaims", "namespaces/research/resourceclaims"}, []string{"--node", "n2"}},
		{"a user without rights", []string{"resourceslices", "resourceclaims", "namespaces/research/resourceclaims"}, nil},
		{"a tenant, what is free", []string{"resourceclaims"}, []string{"--free"}},
		{"an administrator, what is not there", nil, []string{"--product", "h100"}},
	} {
		s := smallCluster(t)
		s.forbidden = test.forbidden
		out, notes, err := s.gpuCommand(t, append([]string{"list"}, test.arguments...)...)
		fmt.Fprintf(&text, "--- %s: kubectl gpu %s\n%s%s", test.who, strings.Join(append([]string{"list"}, test.arguments...), " "), notes, out)
		if err != nil {
			fmt.Fprintf(&text, "error: %s (exit code %d)\n", err, exitCode(err))
		}
	}
	fixture.Golden(t, "list.txt", text.String())
}

func TestAClusterWithoutGPUs(t *testing.T) {
	out, notes, err := newAPIServer(t).gpuCommand(t, "list", "-o", "json")
	if err != nil || !strings.Contains(out, `"gpus": []`) || !strings.Contains(notes, "no ResourceSlice of driver gpu.nvidia.com") {
		t.Errorf("%v\n%s%s", err, notes, out)
	}
}

// What kubectl's users set by flags reaches the API server, or decides how it is reached.
func TestFlagsOfKubectl(t *testing.T) {
	for name, test := range map[string]struct {
		arguments []string
		want      func(*http.Request) string
	}{
		"--as":            {[]string{"--as", "jane"}, func(r *http.Request) string { return r.Header.Get("Impersonate-User") }},
		"--as-group":      {[]string{"--as", "x", "--as-group", "jane"}, func(r *http.Request) string { return r.Header.Get("Impersonate-Group") }},
		"--as-uid":        {[]string{"--as", "x", "--as-uid", "jane"}, func(r *http.Request) string { return r.Header.Get("Impersonate-Uid") }},
		"--as-user-extra": {[]string{"--as", "x", "--as-user-extra", "k=jane"}, func(r *http.Request) string { return r.Header.Get("Impersonate-Extra-K") }},
		"--token":         {[]string{"--token", "jane"}, func(r *http.Request) string { return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") }},
		"--username":      {[]string{"--username", "jane", "--password", "p"}, func(r *http.Request) string { name, _, _ := r.BasicAuth(); return name }},
		"--disable-compression": {[]string{"--disable-compression"}, func(r *http.Request) string {
			return map[bool]string{true: "jane"}[r.Header.Get("Accept-Encoding") == ""]
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := smallCluster(t)
			if _, _, err := s.gpuCommand(t, append([]string{"list"}, test.arguments...)...); err != nil {
				t.Fatal(err)
			}
			if got := test.want(s.asked[len(s.asked)-1]); got != "jane" {
				t.Errorf("%s: the API server is told %q", name, got)
			}
		})
	}
	s := smallCluster(t)
	for _, arguments := range [][]string{
		{"--server", s.URL, "--context", "test"}, {"-s", s.URL}, {"--cluster", "test"}, {"--insecure-skip-tls-verify", "--certificate-authority", ""}, {"--tls-server-name", "example.com"}, {"--request-timeout", "10s"},
	} {
		if _, _, err := s.gpuCommand(t, append([]string{"list"}, arguments...)...); err != nil {
			t.Errorf("%v: %v", arguments, err)
		}
	}
	for wrong, says := range map[string]string{"--context": "nowhere", "--cluster": "nowhere", "--user": "nowhere"} {
		_, _, err := s.gpuCommand(t, "list", wrong, "nowhere")
		fixture.Sentence(t, err, "kubeconfig", says)
	}
	_, _, err := s.gpuCommand(t, "list", "--request-timeout", "1ns")
	fixture.Sentence(t, err, "list the ResourceSlices")
	if got := exitCode(err); got != exitFailed {
		t.Errorf("exit code %d", got)
	}
}
