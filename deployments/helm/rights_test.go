package helm_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/utils/ptr"
)

// A right is a verb and what it is for, such as "patch nodes".
type rights map[string]bool

// granted are the rights of the roles of that name that the chart renders with all of its parts.
func granted(t *testing.T, role string) rights {
	t.Helper()
	discovery := []string{"--set", "controller.discoverNodeGroups=eks,controller.eks.cluster=c,controller.eks.region=r"}
	var rules []rbacv1.PolicyRule
	for _, r := range objects[rbacv1.ClusterRole](t, "ClusterRole", discovery...) {
		if r.Name == role {
			rules = append(rules, r.Rules...)
		}
	}
	for _, r := range objects[rbacv1.Role](t, "Role", discovery...) {
		if r.Name == role {
			rules = append(rules, r.Rules...)
		}
	}
	all := rights{}
	for _, rule := range rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				all[verb+" "+resource] = true
			}
		}
	}
	return all
}

var (
	// In "`pods`, `nodes`: get, list", the first group is what and the second the verbs.
	rightsClause = regexp.MustCompile("((?:`[a-z/]+`(?:, )?)+)[^:`|]*: ([a-z:-]+(?:, [a-z:-]+)*)")
	quoted       = regexp.MustCompile("`([a-z/]+)`")
)

// documented are the rights that the table below a heading of docs/operate/security.md names.
func documented(t *testing.T, heading string) rights {
	t.Helper()
	all := rights{}
	for _, cell := range firstCells(t, heading) {
		for _, clause := range rightsClause.FindAllStringSubmatch(cell, -1) {
			for _, verb := range strings.Split(clause[2], ", ") {
				for _, resource := range quoted.FindAllStringSubmatch(clause[1], -1) {
					all[verb+" "+resource[1]] = true
				}
			}
		}
	}
	return all
}

// firstCells are those of the table below a heading of docs/operate/security.md.
func firstCells(t *testing.T, heading string) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/operate/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("docs/operate/security.md has no heading %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var cells []string
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "| ") {
			cells = append(cells, strings.Split(line, " | ")[0])
		}
	}
	return cells
}

func TestDocumentedRightsAreThoseOfTheRoles(t *testing.T) {
	for role, heading := range map[string]string{
		"mica-controller":  "What the controller can do",
		"mica-plugin":      "What they can do in the cluster",
		"mica-view-gpus":   "What people may see",
		"mica-cordon-gpus": "What people may cordon",
	} {
		want, got := granted(t, role), documented(t, heading)
		for _, right := range slices.Sorted(maps.Keys(want)) {
			if !got[right] {
				t.Errorf("docs/operate/security.md does not say that %s may %s", role, right)
			}
		}
		for _, right := range slices.Sorted(maps.Keys(got)) {
			if !want[right] {
				t.Errorf("docs/operate/security.md says that %s may %s, and no role does", role, right)
			}
		}
	}
}

var leading = regexp.MustCompile("^\\| `([A-Za-z-]+)`")

// What a DaemonSet has of its node is documented: its volumes, and what else may be taken from it.
func TestDocumentedPartsOfTheNodeAreThoseOfTheDaemonSets(t *testing.T) {
	headings := map[string]string{"mica-plugin": "What the plugin can do on a node", "mica-mps": "What the MPS supervisor can do on a node"}
	for _, set := range objects[appsv1.DaemonSet](t, "DaemonSet", "--set", "mps.enabled=true,nvidiaCDIHookDirectory=/opt/hook") {
		pod := set.Spec.Template.Spec
		var want, got []string
		for _, volume := range pod.Volumes {
			want = append(want, volume.Name)
		}
		if ptr.Deref(pod.Containers[0].SecurityContext.Privileged, false) {
			want = append(want, "privileged")
		}
		if pod.HostPID {
			want = append(want, "hostPID")
		}
		for _, cell := range firstCells(t, headings[set.Name]) {
			if name := leading.FindStringSubmatch(cell); name != nil {
				got = append(got, name[1])
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("docs/operate/security.md says of %s that it has %q of its node, and it has %q", set.Name, got, want)
		}
	}
}
