//go:build e2e

package e2e

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// claimName is the name under which the pods of these tests know their claim.
const claimName = "gpu"

// requestName is the name of the only request of a claim made by claimFor.
const requestName = "gpu"

// claimFor is a claim for count GPUs that fulfil all CEL expressions.
func (in *installation) claimFor(count int, expressions ...string) resourcev1.ResourceClaimSpec {
	request := &resourcev1.ExactDeviceRequest{
		DeviceClassName: in.driver,
		AllocationMode:  resourcev1.DeviceAllocationModeExactCount,
		Count:           int64(count),
	}
	for _, expression := range expressions {
		request.Selectors = append(request.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: expression}})
	}
	return resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
		Requests: []resourcev1.DeviceRequest{{Name: requestName, Exactly: request}},
	}}
}

// configured adds an opaque configuration for the claim's request.
func configured(spec resourcev1.ResourceClaimSpec, driver, parameters string) resourcev1.ResourceClaimSpec {
	spec.Devices.Config = append(spec.Devices.Config, resourcev1.DeviceClaimConfiguration{
		Requests: []string{requestName},
		DeviceConfiguration: resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{
			Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
		}},
	})
	return spec
}

// podFromTemplate is a pod with a claim of its own.
func (in *installation) podFromTemplate(name, template string) *corev1.Pod {
	return in.podWith(name, corev1.PodResourceClaim{Name: claimName, ResourceClaimTemplateName: &template})
}

// podSharing is a pod that uses a claim that others may use as well.
func (in *installation) podSharing(name, claim string) *corev1.Pod {
	return in.podWith(name, corev1.PodResourceClaim{Name: claimName, ResourceClaimName: &claim})
}

func (in *installation) podWith(name string, claim corev1.PodResourceClaim) *corev1.Pod {
	pod := in.plainPod(name)
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{claim}
	pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: claimName}}
	return pod
}

// plainPod is a pod that shows what it was given, which is nothing, until it is stopped.
func (in *installation) plainPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector:                 map[string]string{corev1.LabelHostname: in.hostname},
			AutomountServiceAccountToken: ptr.To(false),
			Containers:                   []corev1.Container{in.container("main", "show")},
		},
	}
}

func (in *installation) container(name string, args ...string) corev1.Container {
	return corev1.Container{Name: name, Image: in.image, ImagePullPolicy: corev1.PullIfNotPresent, Args: args}
}

// names are count names that begin alike.
func names(prefix string, count int) []string {
	all := make([]string, count)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return all
}
