//go:build e2e

package e2e

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/restmapper"
)

// applier applies objects of any kind that the API server knows, which looks at them as strictly as it can.
type applier struct {
	*scenario
	mapper meta.RESTMapper
	client dynamic.Interface
}

func (s *scenario) applier() applier {
	s.Helper()
	groups, err := restmapper.GetAPIGroupResources(s.client.Discovery())
	must(s, err, "ask which kinds there are")
	return applier{s, restmapper.NewDiscoveryRESTMapper(groups), s.dynamicClient()}
}

// dynamicClient is one of objects of any kind.
func (in *installation) dynamicClient() dynamic.Interface {
	return dynamic.NewForConfigOrDie(in.config) // which made the other client
}

// apply applies an object in the scenario's namespace. With dryRun, and if it is of no namespace, it is
// only looked at.
func (a applier) apply(object *unstructured.Unstructured, dryRun bool) {
	a.Helper()
	kind := object.GroupVersionKind()
	mapping, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	must(a, err, "look for the kind %s", kind)
	options := metav1.PatchOptions{FieldManager: "e2e", FieldValidation: metav1.FieldValidationStrict}
	var resource dynamic.ResourceInterface = a.client.Resource(mapping.Resource).Namespace(a.namespace)
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		resource, dryRun = a.client.Resource(mapping.Resource), true
	}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	patch, err := object.MarshalJSON()
	must(a, err, "encode %s %s", kind.Kind, object.GetName())
	_, err = resource.Patch(a.Context(), object.GetName(), "application/apply-patch+yaml", patch, options)
	must(a, err, "apply %s %s", kind.Kind, object.GetName())
}

// loosen makes an object what the dynamic client takes. What the API server sets is left out: an
// applied zero would be a wish.
func loosen(object runtime.Object) (*unstructured.Unstructured, error) {
	if loose, ok := object.(*unstructured.Unstructured); ok {
		return loose, nil
	}
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		return nil, err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	loose := &unstructured.Unstructured{Object: content}
	loose.SetGroupVersionKind(kinds[0])
	unstructured.RemoveNestedField(loose.Object, "status")
	return loose, nil
}
