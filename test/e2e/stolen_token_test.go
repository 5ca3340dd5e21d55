//go:build e2e

package e2e

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// thief is who has stolen the controller's token.
type thief struct {
	kubernetes.Interface
	t *testing.T
	// config has the stolen token.
	config *rest.Config
	// serviceAccount is the controller's, of the release's namespace.
	serviceAccount string
	// placeholders is their namespace, image and priorityClass are theirs.
	placeholders, image, priorityClass string
}

func newThief(t *testing.T) *thief {
	t.Helper()
	pods, err := under.client.CoreV1().Pods(under.plugin.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: controllerSelector})
	must(t, err, "list the controller's pods")
	if len(pods.Items) == 0 {
		t.Fatal("no controller is installed")
	}
	spec := pods.Items[0].Spec
	f := &thief{t: t, serviceAccount: spec.ServiceAccountName}
	for _, flag := range []struct {
		name string
		to   *string
	}{
		{"--placeholder-namespace=", &f.placeholders}, {"--placeholder-image=", &f.image}, {"--placeholder-priority-class=", &f.priorityClass},
	} {
		for _, arg := range spec.Containers[0].Args {
			if value, found := strings.CutPrefix(arg, flag.name); found {
				*flag.to = value
			}
		}
		if *flag.to == "" {
			t.Fatalf("the controller runs without %s: %v", flag.name, spec.Containers[0].Args)
		}
	}
	token, err := under.client.CoreV1().ServiceAccounts(under.plugin.namespace).CreateToken(t.Context(), f.serviceAccount, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err, "request a token of ServiceAccount %s", f.serviceAccount)
	config := rest.AnonymousClientConfig(under.config)
	config.BearerToken = token.Status.Token
	f.config = config
	f.Interface, err = kubernetes.NewForConfig(config)
	must(t, err, "make a client")
	return f
}

// placeholder is one that the controller could have made.
func (f *thief) placeholder() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "mica-e2e-", Labels: map[string]string{placeholderLabel: "mica-e2e-none", testLabel: ""},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "mica.gpu/v1alpha1", Kind: "GPUNodeGroup", Name: "mica-e2e-none", UID: "none", Controller: ptr.To(true)}},
		},
		Spec: corev1.PodSpec{
			PriorityClassName: f.priorityClass, AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To(int64(65534)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: "placeholder", Image: f.image, Args: []string{"pause"},
				Resources:       corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m")}},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		},
	}
}

func (f *thief) create(namespace string, change func(*corev1.PodSpec)) error {
	pod := f.placeholder()
	change(&pod.Spec)
	_, err := f.CoreV1().Pods(namespace).Create(f.t.Context(), pod, metav1.CreateOptions{DryRun: dryRun})
	return err
}

// TestAStolenTokenOfTheController tries to become root of a node, or of the cluster, with the controller's rights.
// deployments/helm tests what else the policies of placeholders and nodes refuse.
func TestAStolenTokenOfTheController(t *testing.T) {
	t.Parallel()
	f := newThief(t)
	same := func(*corev1.PodSpec) {}
	if err := f.create(f.placeholders, same); err != nil {
		t.Errorf("a placeholder is refused: %v", err)
	}
	pods := []struct {
		name, namespace string
		change          func(*corev1.PodSpec)
		want            string
	}{
		{"privileged", f.placeholders, func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext.Privileged, s.Containers[0].SecurityContext.AllowPrivilegeEscalation = ptr.To(true), nil
		}, `violates PodSecurity "restricted`},
		{"another image", f.placeholders, func(s *corev1.PodSpec) { s.Containers[0].Image = under.image }, "a placeholder of the Mica controller runs the image " + f.image},
		{"beside the plugin", under.plugin.namespace, same, "pods is forbidden"},
		{"in the system's namespace", "kube-system", same, "pods is forbidden"},
	}
	for _, test := range pods {
		t.Run(test.name, func(t *testing.T) { expectForbidden(t, f.create(test.namespace, test.change), test.want) })
	}
	t.Run("a pod that it did not make", func(t *testing.T) {
		pod := under.awaitPlugin(t)
		err := f.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{DryRun: dryRun})
		expectForbidden(t, err, `cannot delete resource "pods" in API group "" in the namespace "`+pod.Namespace)
	})
	t.Run("a taint on a node", func(t *testing.T) {
		_, err := f.CoreV1().Nodes().Patch(t.Context(), under.node, types.StrategicMergePatchType, []byte(`{"spec":{"taints":[{"key":"mica-e2e","effect":"NoExecute"}]}}`), metav1.PatchOptions{DryRun: dryRun})
		expectForbidden(t, err, "and may add none")
	})
	for want, try := range map[string]func() error{
		"secrets is forbidden": func() error {
			_, err := f.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
			return err
		},
		"resourceslices.resource.k8s.io is forbidden": func() error {
			_, err := f.ResourceV1().ResourceSlices().Create(t.Context(), under.sliceOf(func(*resourcev1.ResourceSliceSpec) {}), metav1.CreateOptions{DryRun: dryRun})
			return err
		},
		`cannot create resource "serviceaccounts/token"`: func() error {
			_, err := f.CoreV1().ServiceAccounts(under.plugin.namespace).CreateToken(t.Context(), under.serviceAccount, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			return err
		},
		`cannot patch resource "namespaces"`: func() error {
			_, err := f.CoreV1().Namespaces().Patch(t.Context(), f.placeholders, types.MergePatchType, []byte(`{"metadata":{"labels":null}}`), metav1.PatchOptions{DryRun: dryRun})
			return err
		},
		"clusterrolebindings.rbac.authorization.k8s.io is forbidden": func() error {
			_, err := f.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "mica-e2e-"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			}, metav1.CreateOptions{DryRun: dryRun})
			return err
		},
	} {
		t.Run(want, func(t *testing.T) { expectForbidden(t, try(), want) })
	}
}
