package helm_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
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
	text, err := os.ReadFile("../../docs/operate/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("docs/operate/security.md has no heading %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	all := rights{}
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		cell := strings.Split(line, " | ")[0]
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
