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

// asker names a claim, or a template of one, whose requests have to be read.
type asker struct {
	namespace string
	claim     corev1.PodResourceClaim
	// tell is told of the requests, and of the claim as kubectl takes it.
	tell func(claim string, requests []resourceapi.DeviceRequest)
}

// claimed reads what KubeVirt's machines and DaemonSets ask for by claims: claims and templates are
// listed once, whatever the number of machines.
func (s *survey) claimed(ctx context.Context, f *doctor.Facts) {
	all := append(s.machines(ctx, f), daemonClaims(f)...)
	templates, claims := map[client.ObjectKey][]asker{}, map[client.ObjectKey][]asker{}
	for _, a := range all {
		switch {
		case a.claim.ResourceClaimTemplateName != nil:
			key := client.ObjectKey{Namespace: a.namespace, Name: *a.claim.ResourceClaimTemplateName}
			templates[key] = append(templates[key], a)
		case a.claim.ResourceClaimName != nil:
			key := client.ObjectKey{Namespace: a.namespace, Name: *a.claim.ResourceClaimName}
			claims[key] = append(claims[key], a)
		}
	}
	if len(templates) > 0 {
		s.each(ctx, f, doctor.KindTemplates, func() client.ObjectList { return &resourceapi.ResourceClaimTemplateList{} }, func(object runtime.Object) {
			template := object.(*resourceapi.ResourceClaimTemplate)
			for _, a := range templates[client.ObjectKeyFromObject(template)] {
				a.tell("resourceclaimtemplate/"+template.Name, template.Spec.Spec.Devices.Requests)
			}
		})
	}
	if len(claims) > 0 {
		s.each(ctx, f, doctor.KindClaims, func() client.ObjectList { return &resourceapi.ResourceClaimList{} }, func(object runtime.Object) {
			claim := object.(*resourceapi.ResourceClaim)
			for _, a := range claims[client.ObjectKeyFromObject(claim)] {
				a.tell("resourceclaim/"+claim.Name, claim.Spec.Devices.Requests)
			}
		})
	}
}

// machines are KubeVirt's.
func (s *survey) machines(ctx context.Context, f *doctor.Facts) []asker {
	empty := func() client.ObjectList {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachineInstanceList"})
		return list
	}
	var all []asker
	s.each(ctx, f, doctor.KindMachines, empty, func(object runtime.Object) {
		machine, ok := object.(*unstructured.Unstructured)
		if !ok {
			return
		}
		namespace, name := machine.GetNamespace(), machine.GetName()
		for _, claim := range claimsOf(machine) {
			all = append(all, asker{namespace, claim, func(claim string, requests []resourceapi.DeviceRequest) {
				for _, request := range doctor.MultipleDevices(requests) {
					f.Machines = append(f.Machines, doctor.Machine{Namespace: namespace, Name: name, Claim: claim, Request: request})
				}
			}})
		}
	})
	return all
}

// daemonClaims are those of DaemonSets.
func daemonClaims(f *doctor.Facts) []asker {
	var all []asker
	for i := range f.DaemonSets {
		set := &f.DaemonSets[i]
		for _, claim := range set.Spec.Template.Spec.ResourceClaims {
			all = append(all, asker{set.Namespace, claim, func(claim string, requests []resourceapi.DeviceRequest) {
				for _, request := range doctor.TakingDevices(requests) {
					f.DaemonClaims = append(f.DaemonClaims, doctor.DaemonClaim{Namespace: set.Namespace, DaemonSet: set.Name, Claim: claim, Request: request})
				}
			}})
		}
	}
	return all
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
