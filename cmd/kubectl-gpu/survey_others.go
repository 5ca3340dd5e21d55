package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/kubectl/doctor"
)

// Where Kueue's chart and manifests keep its configuration.
const (
	kueueConfigName = "kueue-manager-config"
	kueueConfigKey  = "controller_manager_config.yaml"
)

// kueueConfig is the part of Kueue's Configuration that counts.
type kueueConfig struct {
	Resources struct {
		DeviceClassMappings []struct {
			Name    string `json:"name"`
			Sources []struct {
				Counter *struct {
					Name   string `json:"name"`
					Driver string `json:"driver"`
				} `json:"counter"`
			} `json:"sources"`
		} `json:"deviceClassMappings"`
	} `json:"resources"`
}

// kueue reads which counters Kueue charges by. Other fields of its configuration are its own.
func (s *survey) kueue(ctx context.Context, f *doctor.Facts, o surveyOptions) {
	var written corev1.ConfigMap
	err := s.Get(ctx, client.ObjectKey{Namespace: o.kueueNamespace, Name: kueueConfigName}, &written)
	note(f, doctor.KindKueue, err)
	if err != nil {
		return
	}
	var config kueueConfig
	if err := yaml.Unmarshal([]byte(written.Data[kueueConfigKey]), &config); err != nil {
		note(f, doctor.KindKueue, fmt.Errorf("key %s of ConfigMap %s is not YAML: %w", kueueConfigKey, kueueConfigName, err))
		return
	}
	for _, mapping := range config.Resources.DeviceClassMappings {
		for _, source := range mapping.Sources {
			if source.Counter != nil {
				f.Kueue = append(f.Kueue, doctor.Mapping{Name: mapping.Name, Counter: source.Counter.Name, Driver: source.Counter.Driver})
			}
		}
	}
}

// machines reads the claims of KubeVirt's machines.
func (s *survey) machines(ctx context.Context, f *doctor.Facts) {
	empty := func() client.ObjectList {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachineInstanceList"})
		return list
	}
	s.each(ctx, f, doctor.KindMachines, empty, func(object runtime.Object) {
		machine, ok := object.(*unstructured.Unstructured)
		if !ok {
			return
		}
		for _, claim := range claimsOf(machine) {
			name, requests, err := s.requests(ctx, machine.GetNamespace(), claim)
			note(f, doctor.KindMachines, err)
			for _, request := range doctor.MultipleDevices(requests) {
				f.Machines = append(f.Machines, doctor.Machine{Namespace: machine.GetNamespace(), Name: machine.GetName(), Claim: name, Request: request})
			}
		}
	})
}

// claimsOf are a machine's spec.resourceClaims, which are as those of a pod.
func claimsOf(machine *unstructured.Unstructured) []corev1.PodResourceClaim {
	entries, _, _ := unstructured.NestedSlice(machine.Object, "spec", "resourceClaims")
	var claims []corev1.PodResourceClaim
	for _, entry := range entries {
		fields, ok := entry.(map[string]any)
		var claim corev1.PodResourceClaim
		if ok && runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &claim) == nil {
			claims = append(claims, claim)
		}
	}
	return claims
}

// requests are those of a claim or template, whose name they come with.
func (s *survey) requests(ctx context.Context, namespace string, claim corev1.PodResourceClaim) (string, []resourceapi.DeviceRequest, error) {
	switch {
	case claim.ResourceClaimTemplateName != nil:
		var template resourceapi.ResourceClaimTemplate
		err := s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: *claim.ResourceClaimTemplateName}, &template)
		return "resourceclaimtemplate/" + *claim.ResourceClaimTemplateName, template.Spec.Spec.Devices.Requests, err
	case claim.ResourceClaimName != nil:
		var named resourceapi.ResourceClaim
		err := s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: *claim.ResourceClaimName}, &named)
		return "resourceclaim/" + *claim.ResourceClaimName, named.Spec.Devices.Requests, err
	}
	return "", nil, nil
}
