package helm_test

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// objects are those of a kind that the chart renders with all of its parts.
func objects[T any](t *testing.T, kind string, args ...string) []T {
	t.Helper()
	var found []T
	all := append([]string{"--namespace", "mica", "--set", "mps.enabled=true,controller.keda.enabled=true,controller.keda.tls.requireClientCertificate=false"}, args...)
	for document := range strings.SplitSeq(render(t, all...), "\n---\n") {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
			t.Fatal(err)
		}
		if meta.Kind != kind {
			continue
		}
		var object T
		if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		found = append(found, object)
	}
	return found
}

// podTemplates are those of the plugin, the MPS supervisor, the controller and the Job that releases nodes.
func podTemplates(t *testing.T, args ...string) []corev1.PodTemplateSpec {
	t.Helper()
	var templates []corev1.PodTemplateSpec
	for _, set := range objects[appsv1.DaemonSet](t, "DaemonSet", args...) {
		templates = append(templates, set.Spec.Template)
	}
	for _, deployment := range objects[appsv1.Deployment](t, "Deployment", args...) {
		templates = append(templates, deployment.Spec.Template)
	}
	for _, job := range objects[batchv1.CronJob](t, "CronJob", args...) {
		templates = append(templates, job.Spec.JobTemplate.Spec.Template)
	}
	if len(templates) != 4 {
		t.Fatalf("got %d kinds of pods", len(templates))
	}
	return templates
}

// A pod that a policy forgets is open, and a port that it forgets is closed.
func TestNetworkPoliciesKnowEveryPodAndPort(t *testing.T) {
	const enabled = "networkPolicy.enabled=true"
	policies := objects[networkingv1.NetworkPolicy](t, "NetworkPolicy", "--set", enabled)
	for _, pod := range podTemplates(t, "--set", enabled) {
		name := pod.Labels["app.kubernetes.io/component"]
		var open, wanted []int32
		selected := 0
		for _, policy := range policies {
			selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
			if err != nil {
				t.Fatal(err)
			}
			if !selector.Matches(labels.Set(pod.Labels)) {
				continue
			}
			selected++
			if !slices.Equal(policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}) {
				t.Errorf("%s: the policy is for %v", name, policy.Spec.PolicyTypes)
			}
			for _, rule := range policy.Spec.Ingress {
				for _, port := range rule.Ports {
					open = append(open, port.Port.IntVal)
				}
			}
			if reaches := len(policy.Spec.Egress) > 0; reaches != (name != "mps") {
				t.Errorf("%s: may reach %v", name, policy.Spec.Egress)
			}
		}
		for _, port := range pod.Spec.Containers[0].Ports {
			if port.Name != "health" { // kubelet's, which needs no rule
				wanted = append(wanted, port.ContainerPort)
			}
		}
		slices.Sort(open)
		slices.Sort(wanted)
		if selected != 1 || !slices.Equal(open, wanted) {
			t.Errorf("%s: %d policies open %v, want one that opens %v", name, selected, open, wanted)
		}
	}
	if got := objects[networkingv1.NetworkPolicy](t, "NetworkPolicy"); len(got) > 0 {
		t.Errorf("there are %d unexpected policies", len(got))
	}
}

// constraints are what the chart uses of OpenShift's SecurityContextConstraints.
type constraints struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Users             []string `json:"users"`
	Volumes           []string `json:"volumes"`

	AllowPrivilegedContainer bool `json:"allowPrivilegedContainer"`
	AllowHostDirVolumePlugin bool `json:"allowHostDirVolumePlugin"`
	AllowHostPID             bool `json:"allowHostPID"`
	AllowHostIPC             bool `json:"allowHostIPC"`
	AllowHostNetwork         bool `json:"allowHostNetwork"`
	AllowHostPorts           bool `json:"allowHostPorts"`
	ReadOnlyRootFilesystem   bool `json:"readOnlyRootFilesystem"`
	AllowPrivilegeEscalation bool `json:"allowPrivilegeEscalation"`

	Groups, AllowedCapabilities, DefaultAddCapabilities, RequiredDropCapabilities []string
	SeccompProfiles                                                               []string
	Priority                                                                      *int32
	RunAsUser, SELinuxContext, FSGroup, SupplementalGroups                        map[string]string
}

func TestOpenShiftLetsPrivilegedPodsRunAndNothingMore(t *testing.T) {
	const enabled = "securityContextConstraints.enabled=true"
	byUser := map[string]constraints{}
	for _, c := range objects[constraints](t, "SecurityContextConstraints", "--set", enabled) {
		for _, user := range c.Users {
			byUser[user] = c
		}
	}
	privileged := 0
	for _, pod := range podTemplates(t, "--set", enabled) {
		spec := pod.Spec
		c, has := byUser["system:serviceaccount:mica:"+spec.ServiceAccountName]
		if wants := ptr.Deref(spec.Containers[0].SecurityContext.Privileged, false); wants != has {
			t.Errorf("%s is privileged: %t; has constraints of its own: %t", spec.ServiceAccountName, wants, has)
		}
		if !has {
			continue
		}
		privileged++
		if c.AllowHostPID != spec.HostPID || c.AllowHostNetwork || c.AllowHostIPC || c.AllowHostPorts {
			t.Errorf("%s, with host PIDs %t, may use %+v", spec.ServiceAccountName, spec.HostPID, c)
		}
		if !c.AllowPrivilegedContainer || !c.AllowPrivilegeEscalation || !c.AllowHostDirVolumePlugin || !c.ReadOnlyRootFilesystem {
			t.Errorf("%s may not do what it needs: %+v", spec.ServiceAccountName, c)
		}
		for _, volume := range spec.Volumes {
			if volume.HostPath == nil {
				t.Errorf("%s has the volume %s, which is none of %v", spec.ServiceAccountName, volume.Name, c.Volumes)
			}
		}
	}
	if privileged != 2 || len(byUser) != 2 {
		t.Errorf("%d privileged pods and %d users of constraints", privileged, len(byUser))
	}
}
