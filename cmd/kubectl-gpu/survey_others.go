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
	namespace, name string
	claim           corev1.PodResourceClaim
	// choose names the requests that count, which are noted in into.
	choose func([]resourceapi.DeviceRequest) []string
	into   *[]doctor.ClaimRequest
}

func (a asker) note(claim string, requests []resourceapi.DeviceRequest) {
	for _, request := range a.choose(requests) {
		*a.into = append(*a.into, doctor.ClaimRequest{Namespace: a.namespace, Name: a.name, Claim: claim, Request: request})
	}
}

// claimed reads what KubeVirt's machines and DaemonSets ask for by claims: claims and templates are
// listed once, whatever the number of machines.
func (s *survey) claimed(ctx context.Context, f *doctor.Facts) {
	templates, claims := map[client.ObjectKey][]asker{}, map[client.ObjectKey][]asker{}
	for _, a := range append(s.machines(ctx, f), daemons(f)...) {
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
				a.note("resourceclaimtemplate/"+template.Name, template.Spec.Spec.Devices.Requests)
			}
		})
	}
	if len(claims) > 0 {
		s.each(ctx, f, doctor.KindClaims, func() client.ObjectList { return &resourceapi.ResourceClaimList{} }, func(object runtime.Object) {
			claim := object.(*resourceapi.ResourceClaim)
			for _, a := range claims[client.ObjectKeyFromObject(claim)] {
				a.note("resourceclaim/"+claim.Name, claim.Spec.Devices.Requests)
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
		if machine, is := object.(*unstructured.Unstructured); is {
			for _, claim := range claimsOf(machine) {
				all = append(all, asker{machine.GetNamespace(), machine.GetName(), claim, doctor.MultipleDevices, &f.Machines})
			}
		}
	})
	return all
}

// daemons are the DaemonSets with claims.
func daemons(f *doctor.Facts) []asker {
	var all []asker
	for i := range f.DaemonSets {
		set := &f.DaemonSets[i]
		for _, claim := range set.Spec.Template.Spec.ResourceClaims {
			all = append(all, asker{set.Namespace, set.Name, claim, doctor.TakingDevices, &f.Daemons})
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
