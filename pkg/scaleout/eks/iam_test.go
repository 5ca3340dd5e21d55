package eks

import (
	"context"
	"encoding/json"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mica-gpu/mica/test/ekssim"
)

// oneOrMore is a string or a list of them, as IAM takes both.
type oneOrMore []string

// UnmarshalJSON implements json.Unmarshaler.
func (s *oneOrMore) UnmarshalJSON(data []byte) error {
	var one string
	if err := json.Unmarshal(data, &one); err == nil {
		*s = oneOrMore{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(s))
}

type iamPolicy struct {
	Statement []struct {
		Effect           string
		Action, Resource oneOrMore
	}
}

func readPolicy(t *testing.T, name string) iamPolicy {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../../examples/iam", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var p iamPolicy
	if err := json.Unmarshal(data, &p); err != nil {
		t.Fatalf("%s.json: %v", name, err)
	}
	return p
}

// actions are what a policy allows.
func (p iamPolicy) actions() []string {
	all := map[string]bool{}
	for _, s := range p.Statement {
		for _, action := range s.Action {
			all[action] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// called are the actions that the package's code calls.
func called(t *testing.T) []string {
	t.Helper()
	fields := map[string]string{"api": "eks:", "scaling": "autoscaling:"}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, is := n.(*ast.CallExpr); is {
				if method, is := call.Fun.(*ast.SelectorExpr); is {
					if field, is := method.X.(*ast.SelectorExpr); is && fields[field.Sel.Name] != "" {
						all[fields[field.Sel.Name]+method.Sel.Name] = true
					}
				}
			}
			return true
		})
	}
	return slices.Sorted(maps.Keys(all))
}

// The policies allow what the code calls, and nothing else.
func TestIAMPoliciesAreExact(t *testing.T) {
	all := map[string]bool{}
	for name, use := range map[string]func(*testing.T, *bench){
		"discover": func(t *testing.T, b *bench) {
			if _, err := b.client.Discover(context.Background(), gpus.Cluster, func(string) bool { return true }); err != nil {
				t.Error(err)
			}
		},
		"direct": func(t *testing.T, b *bench) {
			id, err := b.set(b.intent(2))
			if err != nil {
				t.Error(err)
			}
			b.describe(id)
			b.clock.Step(takes)
			b.Settle()
			b.Change(gpus.Nodegroup, func(g *ekssim.Group) { g.Status = "UPDATING" })
			if _, err := b.set(b.intent(3)); err != nil {
				t.Error(err)
			}
			b.instances(gpus.Nodegroup, 3, map[string]string{"i-1": "InService"})
			if err := b.client.End(context.Background(), groupOf(gpus, ""), "i-1"); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			use(t, b)
			calls := map[string]bool{}
			for _, action := range called(t) {
				_, operation, _ := strings.Cut(action, ":")
				if b.count(operation) > 0 {
					calls[action] = true
				}
			}
			allowed := readPolicy(t, name).actions()
			if diff := cmp.Diff(slices.Sorted(maps.Keys(calls)), allowed); diff != "" {
				t.Errorf("examples/iam/%s.json allows other actions than are called (-called +allowed):\n%s", name, diff)
			}
			for _, action := range allowed {
				all[action] = true
			}
		})
	}
	if diff := cmp.Diff(called(t), slices.Sorted(maps.Keys(all))); diff != "" {
		t.Errorf("the policies together allow other actions than the code calls (-called +allowed):\n%s", diff)
	}
}

// What changes something is allowed for this cluster's own groups only.
func TestIAMPoliciesAllowNoChangeElsewhere(t *testing.T) {
	for _, name := range []string{"discover", "direct", "cluster-autoscaler"} {
		for _, s := range readPolicy(t, name).Statement {
			if s.Effect != "Allow" || len(s.Resource) == 0 {
				t.Errorf("%s.json has a statement of effect %q on %v", name, s.Effect, s.Resource)
			}
			for _, action := range s.Action {
				_, verb, _ := strings.Cut(action, ":")
				reads := strings.HasPrefix(verb, "Describe") || strings.HasPrefix(verb, "Get") || strings.HasPrefix(verb, "List")
				for _, resource := range s.Resource {
					if strings.Contains(action, "*") || !reads && (!strings.HasPrefix(resource, "arn:aws:") || !strings.Contains(resource, ":REGION:ACCOUNT:")) {
						t.Errorf("%s.json allows %s on %s", name, action, resource)
					}
				}
			}
		}
	}
	if !slices.Contains(readPolicy(t, "cluster-autoscaler").actions(), "eks:DescribeNodegroup") {
		t.Error("Cluster Autoscaler is not allowed to read labels and taints of node groups")
	}
}
