//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/test/rights"
)

// unusedBecause has the rights of Mica's roles that no request of a whole run uses.
var unusedBecause = map[rights.Right]string{
	of(plugin, "associated-node:patch", "resource.k8s.io", "resourceclaims/driver", "", "gpu.nvidia.com"): "the API server asks for it within the patch of resourceclaims/status, and its log has that request alone",

	of(controller, "get", "argoproj.io", "rollouts", "", ""):                                  otherTarget,
	of(controller, "get", "argoproj.io", "rollouts/scale", "", ""):                            otherTarget,
	of(controller, "get", "nvidia.com", "dynamographdeploymentscalingadapters", "", ""):       otherTarget,
	of(controller, "get", "nvidia.com", "dynamographdeploymentscalingadapters/scale", "", ""): otherTarget,
}

const otherTarget = "the kind is not in this cluster, and is read as leaderworkersets are, which is"

// refusedBecause has what Mica asks for without a right, in tests of what it says then.
var refusedBecause = map[rights.Right]string{
	of(controller, "get", "apps", "daemonsets/scale", "", ""): "TestKEDA names a DaemonSet, which has no scale",
}

const (
	plugin     = "mica:mica-plugin"
	controller = "mica:mica-controller"
)

func of(holder, verb, group, resource, namespace, name string) rights.Right {
	return rights.Right{Holder: "system:serviceaccount:" + holder, Verb: verb, Group: group, Resource: resource, Namespace: namespace, Name: name}
}

// auditBackups is how many older parts of its log the API server of test/cluster keeps.
const auditBackups = 3

// TestEachRightIsUsed compares what Mica's roles grant with what Mica has asked the API server while all other tests ran.
func TestEachRightIsUsed(t *testing.T) {
	comesLast(t, "compares Mica's roles with what all other tests have had Mica ask for")
	if !under.local() {
		skip(t, "MICA_CLUSTER_DIR is not set, so the API server's audit log cannot be read")
	}
	if os.Getenv("MICA_E2E_NO_SKIP") == "" {
		skip(t, "MICA_E2E_NO_SKIP is not set, so tests may have skipped themselves that use a right")
	}
	granted, err := under.grantedRights(t.Context())
	must(t, err, "read Mica's roles")
	// Tests use Mica's tokens, too. The lease is asked for by the name of the program.
	tally := rights.NewTally(granted, "mica-kubelet-plugin/", "mica-controller/", "controller/")
	for _, directory := range []string{filepath.Join(os.Getenv("MICA_CLUSTER_DIR"), "logs"), os.Getenv("MICA_E2E_NODE_LOGS")} {
		if directory != "" {
			addLogs(t, tally, directory)
		}
	}
	for _, complaint := range tally.Complaints(unusedBecause, refusedBecause) {
		t.Error(complaint)
	}
	t.Logf("of %d rights of Mica's roles, all but %d are to be used in a whole run", tally.Len(), len(unusedBecause))
}

// comesLast skips a test that goes with no other beside it: hack/e2e.sh runs it when all others have passed.
func comesLast(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("MICA_E2E_LAST") == "" {
		t.Skipf("this test %s: hack/e2e.sh runs it after them, with MICA_E2E_LAST set", what)
	}
}

// addLogs adds the audit log of the API server whose logs are in the directory.
func addLogs(t *testing.T, tally *rights.Tally, directory string) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(directory, "kube-apiserver-audit*.log"))
	must(t, err, "find the API server's audit log")
	if len(logs) == 0 || len(logs) > auditBackups {
		t.Fatalf("the API server's audit log in %s has %d parts, and 1 to %d are known to be all: see test/cluster for its size", directory, len(logs), auditBackups)
	}
	for _, path := range logs {
		must(t, addLog(tally, path), "read %s", path)
	}
}

func addLog(tally *rights.Tally, path string) error {
	log, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	return tally.Add(log)
}

// grantedRights are those of all roles that are bound to a ServiceAccount of Mica's namespace.
func (in *installation) grantedRights(ctx context.Context) ([]rights.Right, error) {
	clusterBindings, err := in.client.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	bindings, err := in.client.RbacV1().RoleBindings("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, b := range clusterBindings.Items {
		bindings.Items = append(bindings.Items, rbacv1.RoleBinding{RoleRef: b.RoleRef, Subjects: b.Subjects})
	}
	var all []rights.Right
	for _, binding := range bindings.Items {
		for _, subject := range binding.Subjects {
			if subject.Kind != rbacv1.ServiceAccountKind || subject.Namespace != in.plugin.namespace {
				continue
			}
			rules, err := in.rulesOf(ctx, binding)
			if err != nil {
				return nil, err
			}
			all = append(all, rights.Of("system:serviceaccount:"+subject.Namespace+":"+subject.Name, binding.Namespace, rules)...)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no ServiceAccount of namespace %s has a right: install this version's chart", in.plugin.namespace)
	}
	return all, nil
}

func (in *installation) rulesOf(ctx context.Context, binding rbacv1.RoleBinding) ([]rbacv1.PolicyRule, error) {
	if binding.RoleRef.Kind == "Role" {
		role, err := in.client.RbacV1().Roles(binding.Namespace).Get(ctx, binding.RoleRef.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return role.Rules, nil
	}
	role, err := in.client.RbacV1().ClusterRoles().Get(ctx, binding.RoleRef.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return role.Rules, nil
}
