// Package eks holds the files of examples/eks to what reads them: eksctl's own schema, Terraform's
// language, and Mica's rules for node groups. Nothing is created at AWS.
package eks

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

const (
	examples = "../../examples/eks/"
	// eksctl has its schema in its module, which is fetched and verified like any other, and not built.
	eksctl = "github.com/weaveworks/eksctl@v0.225.0"
	schema = "pkg/apis/eksctl.io/v1alpha5/assets/schema.json"

	startup = "startup-taint.cluster-autoscaler.kubernetes.io/mica"
)

type taint struct{ Key, Value, Effect string }

type nodeGroup struct {
	Name, InstanceType       string
	MinSize, DesiredCapacity int
	Labels, Tags             map[string]string
	Taints                   []taint
	AvailabilityZones        []string
	PropagateASGTags         bool
}

// read decodes a YAML file as JSON does.
func read(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(examples + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// moduleDirectory fetches a module.
func moduleDirectory(t *testing.T, module string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module).Output()
	var fetched struct{ Dir, Error string }
	if decoded := json.Unmarshal(out, &fetched); decoded != nil || fetched.Dir == "" {
		t.Fatalf("fetch %s: %v %s %v", module, err, fetched.Error, decoded)
	}
	return fetched.Dir
}

func TestEksctlTakesTheCluster(t *testing.T) {
	compiled, err := jsonschema.NewCompiler().Compile(filepath.Join(moduleDirectory(t, eksctl), schema))
	if err != nil {
		t.Fatal(err)
	}
	var cluster map[string]any
	read(t, "eksctl/cluster.yaml", &cluster)
	if err := compiled.Validate(cluster); err != nil {
		t.Error(err)
	}
	// And the schema does refuse what eksctl does not know.
	cluster["managedNodeGroups"].([]any)[0].(map[string]any)["startupTaints"] = true
	if compiled.Validate(cluster) == nil {
		t.Error("a field that eksctl does not know is taken")
	}
}

func TestGPUGroupsAreAsMicaWantsThem(t *testing.T) {
	var cluster struct {
		Metadata          struct{ Name string }
		ManagedNodeGroups []nodeGroup
	}
	read(t, "eksctl/cluster.yaml", &cluster)
	gpus := 0
	for _, g := range cluster.ManagedNodeGroups {
		if g.Labels["nvidia.com/gpu.present"] == "" {
			continue
		}
		gpus++
		for _, want := range []taint{{"nvidia.com/gpu", "true", "NoSchedule"}, {startup, "starting", "NoSchedule"}} {
			if !slices.Contains(g.Taints, want) {
				t.Errorf("group %s lacks the taint %v", g.Name, want)
			}
		}
		if len(g.AvailabilityZones) != 1 || g.DesiredCapacity != 0 || g.MinSize != 0 {
			t.Errorf("group %s: zones %v, desired %d, min %d; want one zone, and no node at first", g.Name, g.AvailabilityZones, g.DesiredCapacity, g.MinSize)
		}
		if !g.PropagateASGTags || g.Tags["k8s.io/cluster-autoscaler/"+cluster.Metadata.Name] != "owned" {
			t.Errorf("Cluster Autoscaler does not find group %s: tags %v", g.Name, g.Tags)
		}
	}
	if gpus != 3 {
		t.Errorf("%d groups have GPUs, want l4, l4-spot and h100-block", gpus)
	}
}

// attributes are those of a body whose values are plain texts.
func attributes(body *hclsyntax.Body) map[string]string {
	texts := map[string]string{}
	for name, attribute := range body.Attributes {
		if value, diagnostics := attribute.Expr.Value(nil); !diagnostics.HasErrors() && value.Type().FriendlyName() == "string" {
			texts[name] = value.AsString()
		}
	}
	return texts
}

func TestTerraformReadsTheModule(t *testing.T) {
	files, err := filepath.Glob(examples + "terraform/*.tf")
	if err != nil || len(files) != 3 {
		t.Fatalf("%v, %v", files, err)
	}
	declared, used := map[string]bool{}, map[string]bool{}
	var group *hclsyntax.Body
	for _, name := range files {
		file, diagnostics := hclparse.NewParser().ParseHCLFile(name)
		if diagnostics.HasErrors() {
			t.Fatal(diagnostics)
		}
		body := file.Body.(*hclsyntax.Body)
		for _, block := range body.Blocks {
			switch {
			case block.Type == "variable":
				declared[block.Labels[0]] = true
			case block.Type == "resource" && block.Labels[0] == "aws_eks_node_group":
				group = block.Body
			}
		}
		diagnostics = hclsyntax.VisitAll(body, func(node hclsyntax.Node) hcl.Diagnostics {
			if expression, is := node.(*hclsyntax.ScopeTraversalExpr); is && expression.Traversal.RootName() == "var" {
				used[expression.Traversal[1].(hcl.TraverseAttr).Name] = true
			}
			return nil
		})
		if diagnostics.HasErrors() {
			t.Fatal(diagnostics)
		}
	}
	for name := range used {
		if !declared[name] {
			t.Errorf("var.%s is not declared", name)
		}
	}
	for name := range declared {
		if !used[name] {
			t.Errorf("variable %s is not used", name)
		}
	}
	var taints []taint
	for _, block := range group.Blocks {
		if block.Type == "taint" {
			a := attributes(block.Body)
			taints = append(taints, taint{a["key"], a["value"], a["effect"]})
		}
	}
	want := []taint{{"nvidia.com/gpu", "true", "NO_SCHEDULE"}, {startup, "starting", "NO_SCHEDULE"}}
	if !slices.Equal(taints, want) {
		t.Errorf("taints %v, want %v", taints, want)
	}
}

func TestTheGroupsOfBothFilesAreTheSame(t *testing.T) {
	var cluster struct{ ManagedNodeGroups []nodeGroup }
	read(t, "eksctl/cluster.yaml", &cluster)
	types := map[string]string{}
	for _, g := range cluster.ManagedNodeGroups {
		types[g.Name] = g.InstanceType
	}
	text, err := os.ReadFile(examples + "node-groups.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range strings.Split(string(text), "\n---\n") {
		var group struct {
			Spec struct {
				InstanceType string
				Provider     struct{ EKS struct{ Nodegroup string } }
			}
		}
		if err := yaml.Unmarshal([]byte(document), &group); err != nil {
			t.Fatal(err)
		}
		if name := group.Spec.Provider.EKS.Nodegroup; types[name] != group.Spec.InstanceType {
			t.Errorf("node group %s is of %q at eksctl and of %q at Mica", name, types[name], group.Spec.InstanceType)
		}
	}
}
