package rights

import (
	"maps"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

const plugin = "system:serviceaccount:mica:mica-plugin"

var granted = append(Of(plugin, "", []rbacv1.PolicyRule{
	{APIGroups: []string{""}, Resources: []string{"nodes", "pods/status"}, Verbs: []string{"get", "patch"}},
	{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceslices"}, Verbs: []string{"list", "watch"}},
	{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"create"}},
}), Of(plugin, "mica", []rbacv1.PolicyRule{
	{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{"mica"}, Verbs: []string{"update"}},
})...)

// event is a line of a log: of Kubernetes 1.37, without fields that are not read.
func event(change ...string) string {
	return strings.NewReplacer(change...).Replace(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","stage":"ResponseComplete","requestURI":"/api/v1/nodes/n",` +
		`"verb":"get","user":{"username":"system:serviceaccount:mica:mica-plugin"},"userAgent":"mica-kubelet-plugin/v0.1.0",` +
		`"objectRef":{"resource":"nodes","name":"n","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":200}}` + "\n")
}

func TestUses(t *testing.T) {
	lease := []string{`"get"`, `"update"`, `"resource":"nodes","name":"n"`, `"resource":"leases","namespace":"mica","name":"mica","apiGroup":"coordination.k8s.io"`}
	for name, test := range map[string]struct {
		log  string
		want string
	}{
		"nothing":           {"", ""},
		"an object":         {event(), "mica:mica-plugin: get nodes"},
		"a subresource":     {event(`"get"`, `"patch"`, `"nodes","name":"n"`, `"pods","namespace":"d","name":"p","subresource":"status"`), "mica:mica-plugin: patch pods/status"},
		"a watch that runs": {event(`"get"`, `"watch"`, "Complete", "Started", `"nodes","name":"n"`, `"resourceslices","apiGroup":"resource.k8s.io"`), "mica:mica-plugin: watch resourceslices.resource.k8s.io"},
		"a watch instead of a list": {event(`"get"`, `"watch"`, "nodes/n", "resourceslices?sendInitialEvents=true&watch=true", `"nodes","name":"n"`, `"resourceslices","apiGroup":"resource.k8s.io"`),
			"mica:mica-plugin: list resourceslices.resource.k8s.io, mica:mica-plugin: watch resourceslices.resource.k8s.io"},
		"an apply that creates":            {event(`"get"`, `"patch"`, "200", "201"), "mica:mica-plugin: create nodes, mica:mica-plugin: patch nodes"},
		"the one object":                   {event(lease...), "mica:mica-plugin: update leases.coordination.k8s.io mica in namespace mica"},
		"another object":                   {strings.ReplaceAll(event(lease...), `"name":"mica"`, `"name":"other"`), ""},
		"another namespace":                {strings.ReplaceAll(event(lease...), `"namespace":"mica"`, `"namespace":"other"`), ""},
		"another group":                    {event(`"name":"n"`, `"name":"n","apiGroup":"mica.gpu"`), ""},
		"the object's subresource":         {event(`"name":"n"`, `"name":"n","subresource":"status"`), ""},
		"another user":                     {event("mica-plugin\"}", "mica-controller\"}"), ""},
		"a test with the plugin's token":   {event("mica-kubelet-plugin/", "e2e.test/"), ""},
		"a refusal":                        {event("200", "403"), ""},
		"a request without answer":         {event(`"responseStatus":{"metadata":{},"code":200}`, `"auditID":"a"`), ""},
		"a line that is written just then": {event() + event()[:100], "mica:mica-plugin: get nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			tally := NewTally(granted, "mica-kubelet-plugin/")
			if err := tally.Add(strings.NewReader(test.log)); err != nil {
				t.Fatal(err)
			}
			var used []string
			for right, uses := range maps.All(tally.uses) {
				if uses > 0 {
					used = append(used, right.String())
				}
			}
			slices.Sort(used)
			if got := strings.Join(used, ", "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if tally.Len() != 8 {
				t.Errorf("there are %d rights", tally.Len())
			}
		})
	}
}

func TestADamagedLogIsRefused(t *testing.T) {
	tally := NewTally(granted)
	if err := tally.Add(strings.NewReader("{\n" + event())); err == nil || !strings.Contains(err.Error(), "line 1 of the audit log is no event") {
		t.Errorf("got %v", err)
	}
	if err := tally.Add(strings.NewReader(strings.Repeat("a", maxLine+1))); err == nil {
		t.Error("a line without end is read")
	}
}

func TestComplaints(t *testing.T) {
	few := []Right{{Holder: plugin, Verb: "get", Resource: "nodes"}, {Holder: plugin, Verb: "list", Resource: "nodes"}, {Holder: plugin, Verb: "watch", Resource: "nodes"}}
	tally := NewTally(few, "mica-")
	forbidden := event(`"get"`, `"update"`, "200", "403", `"responseStatus"`, `"annotations":{"authorization.k8s.io/decision":"forbid"},"responseStatus"`)
	expected := strings.NewReplacer(`"update"`, `"get"`, `"nodes","name":"n"`, `"daemonsets","apiGroup":"","name":"a","namespace":"b","subresource":"scale"`).Replace(forbidden)
	if err := tally.Add(strings.NewReader(event() + forbidden + expected)); err != nil {
		t.Fatal(err)
	}
	got := tally.Complaints(map[Right]string{
		few[0]: "it has no clock",
		few[1]: "only at AWS",
		{Holder: plugin, Verb: "delete", Resource: "nodes"}: "it once did",
	}, map[Right]string{
		{Holder: plugin, Verb: "get", Resource: "daemonsets/scale"}: "a test asks for it",
		{Holder: plugin, Verb: "get", Resource: "secrets"}:          "it once asked",
	})
	want := []string{
		"mica:mica-plugin: delete nodes: no role grants this, and there is a reason why no request uses it (it once did): remove the reason",
		"mica:mica-plugin: get nodes: this right was used, times: 1, and there is a reason why nothing uses it (it has no clock): remove the reason",
		"mica:mica-plugin: get secrets: this was never refused, and there is a reason why it is (it once asked): remove the reason",
		"mica:mica-plugin: update nodes: this was asked for and no role grants it, times: 1: grant it, do not ask, or give the reason",
		"mica:mica-plugin: watch nodes: no request has used this right: take it from the role, test what needs it, or give the reason why no test can",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}
