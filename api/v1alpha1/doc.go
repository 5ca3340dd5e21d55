// Package v1alpha1 holds the kinds of the API group mica.gpu. It holds types
// only; what they do is decided where they are read.
//
// +kubebuilder:object:generate=true
// +groupName=mica.gpu
package v1alpha1

//go:generate go tool -modfile=../../hack/tools/go.mod controller-gen object crd:crdVersions=v1,maxDescLen=600 paths=. output:crd:dir=../../deployments/helm/mica/crds
