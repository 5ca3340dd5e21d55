//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// listedGPU is what is looked at of a GPU that `kubectl gpu list -o json` prints.
type listedGPU struct {
	Node, Name, UUID, Product string
	InUse                     []deviceInUse
	Memory                    struct{ UsedBytes, TotalBytes int64 }
	Claims                    []heldClaim
	Room                      []struct{ Type string }
	Taints                    []struct{ Key, Value, Effect string }
}

type deviceInUse struct {
	Device, Type, Profile string
	Parts, OfParts        int
}

type heldClaim struct {
	Namespace, Device string
	Pods              []string
}

// gpuCommand runs kubectl gpu, and gives what it prints and what it notes.
func gpuCommand(t testing.TB, arguments ...string) (out, notes string) {
	t.Helper()
	out, notes, err := tryGPUCommand(t.Context(), arguments...)
	must(t, err, "run kubectl gpu %s: %s", strings.Join(arguments, " "), notes)
	return out, notes
}

func tryGPUCommand(ctx context.Context, arguments ...string) (out, notes string, err error) {
	command := exec.CommandContext(ctx, os.Getenv("MICA_KUBECTL_GPU"), arguments...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err = command.Run()
	return stdout.String(), stderr.String(), err
}

// listed are the GPUs that the command prints.
func (s *scenario) listed(arguments ...string) (gpus []listedGPU, notes string) {
	s.Helper()
	out, notes := gpuCommand(s, append([]string{"list", "-o", "json"}, arguments...)...)
	var list struct{ GPUs []listedGPU }
	must(s, json.Unmarshal([]byte(out), &list), "read what kubectl gpu list prints: %s", out)
	return list.GPUs, notes
}

// heldBy is the GPU of the pod's device.
func (s *scenario) heldBy(gpus []listedGPU, pod string) listedGPU {
	s.Helper()
	if at := slices.IndexFunc(gpus, func(g listedGPU) bool { return g.has(s.namespace, pod) }); at >= 0 {
		return gpus[at]
	}
	s.Fatalf("no GPU is listed that pod %s has: %+v", pod, gpus)
	return listedGPU{}
}

// TestGPUsAreListedAsTheyAre lists a whole GPU, a partition and shares: as an administrator, as a user who can
// view GPUs, and as a tenant. How busy they are it asks the controller.
func TestGPUsAreListedAsTheyAre(t *testing.T) {
	t.Parallel()
	s, _ := newPartitionScenario(t, 3)
	s.createTemplate("whole", s.claimFor(1))
	s.createTemplate("part", s.partitionsFor(1))
	s.createTemplate("share", s.sharesFor(timeSliceClass, 1, nil))
	for pod, template := range map[string]string{"whole": "whole", "part": "part", "left": "share", "right": "share"} {
		s.createPod(s.podFromTemplate(pod, template))
	}
	for _, pod := range []string{"whole", "part", "left", "right"} {
		s.waitRunning(pod)
	}
	whole, part, share := s.expectOwnDevices("whole")[0], s.expectOwnDevices("part")[0], s.shareOf("left")

	if out, _ := gpuCommand(t, "explain", "claim/"+s.claimOf(s.waitRunning("left")).Name, "--namespace", s.namespace); !strings.Contains(out, "Allocated") || !strings.Contains(out, share.Device) {
		t.Errorf("kubectl gpu explain says of the claim of share %s:\n%s", share.Device, out)
	}

	all, notes := s.listed()
	if notes != "" {
		t.Errorf("an administrator reads that something is not shown: %s", notes)
	}
	if g := s.heldBy(all, "whole"); g.UUID != whole.uuid || g.Node != s.node || g.InUse[0].Type != "gpu" || g.Memory.UsedBytes != g.Memory.TotalBytes || len(g.Room) != 0 {
		t.Errorf("the whole GPU %s is listed as %+v", whole.uuid, g)
	}
	// Tests that run beside have other parts of these GPUs.
	g := s.heldBy(all, "part")
	if used := g.inUse(part.name); used.Type != "mig" || used.Profile != part.text("profile") || g.Memory.UsedBytes >= g.Memory.TotalBytes || len(g.Room) == 0 && len(g.Claims) == 1 {
		t.Errorf("the GPU of partition %s is listed as %+v", part.name, g)
	}
	g = s.heldBy(all, "left")
	if used := g.inUse(share.Device); used.Parts < 1 || used.Parts > used.OfParts {
		t.Errorf("the GPU of share %s is listed as %+v", share.Device, g)
	}

	s.bindTo("tenant", "view", s.namespace)
	own, notes := s.listed("--as", "tenant", "--namespace", s.namespace)
	for _, hidden := range []string{"ResourceSlices", "ResourceClaims of all namespaces", "mica-view-gpus"} {
		if !strings.Contains(notes, hidden) {
			t.Errorf("a tenant does not read about %s: %s", hidden, notes)
		}
	}
	if g := s.heldBy(own, "part"); g.inUse(part.name).Device == "" || g.Product != "" || g.Room != nil {
		t.Errorf("to a tenant, the GPU of partition %s is listed as %+v", part.name, g)
	}
	for _, g := range own {
		for _, claim := range g.Claims {
			if claim.Namespace != s.namespace {
				t.Errorf("a tenant is shown a claim of namespace %s", claim.Namespace)
			}
		}
	}
	out, notes := gpuCommand(t, "top", "--as", "tenant", "--namespace", s.namespace)
	if !strings.Contains(notes, "services/proxy") || !strings.Contains(out, "whole") {
		t.Errorf("to a tenant, top says:\n%s%s", notes, out)
	}

	viewer := s.namespace + "-viewer"
	s.bindTo(viewer, "mica-view-gpus", "")
	seen, notes := s.listed("--as", viewer)
	if g := s.heldBy(seen, "whole"); notes != "" || g.UUID != whole.uuid {
		t.Errorf("for a user who can view GPUs, the whole GPU is listed as %+v (%s)", g, notes)
	}
	eventually(t, startTimeout, "top shows how busy the devices are", func(ctx context.Context) error {
		out, notes, err := tryGPUCommand(ctx, "top", "pods", "--namespace", s.namespace, "-o", "json", "--as", viewer)
		if err != nil {
			return fmt.Errorf("%w: %s", err, notes)
		}
		var top struct {
			Pods []struct {
				Name        string
				Utilization *float64
			}
		}
		if err := json.Unmarshal([]byte(out), &top); err != nil {
			return err
		}
		for _, pod := range top.Pods {
			if pod.Utilization == nil {
				return fmt.Errorf("there is no utilization of pod %s: %s", pod.Name, notes)
			}
		}
		if len(top.Pods) != 4 {
			return errors.New("there are pods missing: " + out)
		}
		return nil
	})
	s.beginDeletion("whole")
	eventually(t, goneTimeout, "list shows no GPU with pod whole", func(context.Context) error {
		all, _ := s.listed()
		if slices.ContainsFunc(all, func(g listedGPU) bool { return g.has(s.namespace, "whole") }) {
			return errors.New("a GPU is still listed with it")
		}
		return nil
	})
}

// inUse is what is listed of a device of the GPU; empty: it is not.
func (g listedGPU) inUse(device string) deviceInUse {
	at := slices.IndexFunc(g.InUse, func(u deviceInUse) bool { return u.Device == device })
	if at < 0 {
		return deviceInUse{}
	}
	return g.InUse[at]
}

func (g listedGPU) has(namespace, pod string) bool {
	return slices.ContainsFunc(g.Claims, func(c heldClaim) bool { return c.Namespace == namespace && slices.Contains(c.Pods, pod) })
}

// bindTo lets a user do what a ClusterRole allows, in a namespace or, empty, in all; and a user who can view
// GPUs what the Role of that name allows. The API server hears of a binding a moment after it has taken it.
func (s *scenario) bindTo(user, role, namespace string) {
	s.Helper()
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}
	reference := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}
	meta := metav1.ObjectMeta{Name: user, Labels: map[string]string{testLabel: ""}}
	if namespace != "" {
		_, err := s.client.RbacV1().RoleBindings(namespace).Create(s.Context(), &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: reference, Subjects: subjects}, metav1.CreateOptions{})
		must(s, err, "bind %s to %s", role, user)
		s.awaitRight(user, authorizationv1.ResourceAttributes{Verb: "list", Group: resourcev1.GroupName, Resource: "resourceclaims", Namespace: namespace})
		return
	}
	all := s.client.RbacV1().ClusterRoleBindings()
	_, err := all.Create(s.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: reference, Subjects: subjects}, metav1.CreateOptions{})
	must(s, err, "bind %s to %s everywhere", role, user)
	s.Cleanup(func() { _ = all.Delete(context.Background(), user, metav1.DeleteOptions{}) })
	own := s.client.RbacV1().RoleBindings(s.plugin.namespace)
	reference.Kind = "Role"
	_, err = own.Create(s.Context(), &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: reference, Subjects: subjects}, metav1.CreateOptions{})
	must(s, err, "bind %s to %s in namespace %s", role, user, s.plugin.namespace)
	s.Cleanup(func() { _ = own.Delete(context.Background(), user, metav1.DeleteOptions{}) })
	s.awaitRight(user, authorizationv1.ResourceAttributes{Verb: "list", Group: resourcev1.GroupName, Resource: "resourceslices"})
	s.awaitRight(user, authorizationv1.ResourceAttributes{
		Verb: "get", Resource: "services", Subresource: "proxy", Namespace: s.plugin.namespace, Name: "mica-controller-metrics:metrics",
	})
}

// awaitRight waits until the API server lets the user do something.
func (s *scenario) awaitRight(user string, something authorizationv1.ResourceAttributes) {
	s.Helper()
	eventually(s, startTimeout, fmt.Sprintf("%s may %s %s", user, something.Verb, something.Resource), func(ctx context.Context) error {
		review, err := s.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &something},
		}, metav1.CreateOptions{})
		if err == nil && !review.Status.Allowed {
			err = fmt.Errorf("the API server answers %+v", review.Status)
		}
		return err
	})
}

// expectListedSick waits until the GPU of a pod's device is listed with the taint, and nothing of it to be
// had: its shapes are in several slices, which are written one after the other.
func (s *scenario) expectListedSick(pod, uuid, key string) {
	s.Helper()
	eventually(s, startTimeout, fmt.Sprintf("the sick GPU %s of pod %s is listed as tainted by %s and without room", uuid, pod, key), func(context.Context) error {
		gpus, _ := s.listed()
		g := s.heldBy(gpus, pod)
		for _, taint := range g.Taints {
			if taint.Key == key && taint.Effect == "NoSchedule" && g.UUID == uuid && len(g.Room) == 0 {
				return nil
			}
		}
		return fmt.Errorf("it is listed as %+v", g)
	})
}
