package main

import (
	"strings"
	"testing"
)

// coreAPI has the objects whose names the tests complete.
var coreAPI = map[string]string{
	"/api/v1": `{"kind": "APIResourceList", "groupVersion": "v1", "resources": [
		{"name": "nodes", "kind": "Node", "namespaced": false, "verbs": ["list"]},
		{"name": "namespaces", "kind": "Namespace", "namespaced": false, "verbs": ["list"]},
		{"name": "pods", "kind": "Pod", "namespaced": true, "verbs": ["list"]}]}`,
	"/apis/resource.k8s.io/v1": `{"kind": "APIResourceList", "groupVersion": "resource.k8s.io/v1", "resources": [
		{"name": "resourceclaims", "kind": "ResourceClaim", "namespaced": true, "verbs": ["list"]}]}`,
	"/apis/resource.k8s.io/v1/namespaces/research/resourceclaims": partial("train-0-gpus"),
	"/api/v1/nodes":                    partial("n1", "n2", "other"),
	"/api/v1/namespaces":               partial("research", "billing"),
	"/api/v1/namespaces/research/pods": partial("train-0"),
	"/api/v1/namespaces/billing/pods":  partial("invoice"),
}

func partial(names ...string) string {
	items := make([]string, len(names))
	for i, name := range names {
		items[i] = `{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "` + name + `"}}`
	}
	return `{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "items": [` + strings.Join(items, ",") + `]}`
}

func TestShellsCompleteNames(t *testing.T) {
	for name, test := range map[string]struct {
		line []string
		want string
	}{
		"a node":                {[]string{"list", "--node", "n"}, "n1 n2"},
		"a namespace":           {[]string{"top", "-n", ""}, "research billing"},
		"a pod":                 {[]string{"explain", "pod/t"}, "pod/train-0"},
		"a pod of a namespace":  {[]string{"explain", "-n", "billing", ""}, "pod/invoice"},
		"a claim":               {[]string{"explain", "claim/"}, "claim/train-0-gpus"},
		"the kind of a claim":   {[]string{"explain", "cl"}, "claim/train-0-gpus"},
		"one pod only":          {[]string{"explain", "pod/train-0", ""}, ""},
		"a format":              {[]string{"list", "-o", ""}, "table wide json yaml"},
		"an order":              {[]string{"top", "--sort-by", ""}, "name utilization memory"},
		"what to print":         {[]string{"top", ""}, "pods namespaces"},
		"what to cordon":        {[]string{"cordon", ""}, "gpu node"},
		"a node to cordon":      {[]string{"cordon", "node", "n"}, "n1 n2"},
		"a node to uncordon":    {[]string{"uncordon", "node", "o"}, "other"},
		"one node to cordon":    {[]string{"cordon", "node", "n1", ""}, ""},
		"an effect":             {[]string{"cordon", "--effect", ""}, "NoSchedule NoExecute None"},
		"the doctor's format":   {[]string{"doctor", "-o", ""}, "table json yaml"},
		"the format of explain": {[]string{"explain", "-o", ""}, "table json yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t)
			s.answers = coreAPI
			at := len(test.line) - 1
			line := append(append(append([]string{"__complete"}, test.line[:1]...), s.flags(t)...), test.line[1:at+1]...)
			var out strings.Builder
			command := newCommand()
			command.SetArgs(line)
			command.SetOut(&out)
			command.SetErr(&out)
			if err := command.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			got, _, _ := strings.Cut(out.String(), ":")
			if strings.Join(strings.Fields(got), " ") != test.want {
				t.Errorf("completed by %q, want %q", got, test.want)
			}
		})
	}
}

// Errors of completions are not shown.
func TestWhoMayNotListGetsNoCompletions(t *testing.T) {
	s := newAPIServer(t)
	var out strings.Builder
	command := newCommand()
	command.SetArgs(append(append([]string{"__complete", "list"}, s.flags(t)...), "--node", ""))
	command.SetOut(&out)
	if err := command.ExecuteContext(t.Context()); err != nil || !strings.HasPrefix(out.String(), ":") {
		t.Errorf("%v, %q", err, out.String())
	}
}
