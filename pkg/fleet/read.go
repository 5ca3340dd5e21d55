package fleet

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/devices"
)

// Scope is the part of a cluster to read.
type Scope struct {
	// Driver publishes the devices.
	Driver string
	// Namespace is whose claims are read if the user may not list those of all namespaces. With
	// OneNamespace, no others are read.
	Namespace    string
	OneNamespace bool
	// Nodes are those whose slices are wanted; none: all. Slices of other nodes may be read as well.
	Nodes []string
	// ClaimsOnly leaves out slices and rules.
	ClaimsOnly bool
}

const (
	// NotAllClaims and AskFor are parts of sentences about what the user may not see.
	NotAllClaims = "you may not list the ResourceClaims of all namespaces"
	AskFor       = "ask for the ClusterRole mica-view-gpus of Mica's chart (value viewGPUs.subjects)"

	// pageSize is small because a slice has up to 128 devices.
	pageSize = 100
)

// ErrHidden is the error if the user may list neither slices nor claims.
var ErrHidden = errors.New("nothing can be shown: you may list no ResourceClaims, neither of all namespaces nor of yours: " + AskFor)

// Read reads a cluster page by page. What the user may not list is in Unseen.
func Read(ctx context.Context, reader client.Reader, s Scope) (Fleet, error) {
	f := Fleet{SlicesHidden: s.ClaimsOnly}
	if !s.ClaimsOnly {
		if err := f.readSlices(ctx, reader, s); err != nil {
			return f, err
		}
		if err := f.readRules(ctx, reader); err != nil {
			return f, err
		}
	}
	return f, f.readClaims(ctx, reader, s)
}

// ReadClaim reads the devices of one allocated claim.
func ReadClaim(ctx context.Context, reader client.Reader, claim *resourceapi.ResourceClaim) (Fleet, error) {
	var f Fleet
	read := sets.New[string]()
	for held := range devices.HoldingsWithAdmin(claim.Status.Allocation) {
		driver := held.Pool.Driver
		if read.Has(driver) {
			continue
		}
		read.Insert(driver)
		if err := f.readSlices(ctx, reader, Scope{Driver: driver, Nodes: nodesOf(claim)}); err != nil {
			return f, err
		}
		f.Holdings = append(f.Holdings, HoldingsOf(claim, driver)...)
	}
	if f.SlicesHidden {
		f.Unseen = []string{"you may not list ResourceSlices, so products and health of the devices are not shown: " + AskFor}
		return f, nil
	}
	return f, f.readRules(ctx, reader)
}

// nodesOf returns the node of a claim's devices; none if they are not on one node.
func nodesOf(claim *resourceapi.ResourceClaim) []string {
	selector := claim.Status.Allocation.NodeSelector
	if selector == nil || len(selector.NodeSelectorTerms) != 1 {
		return nil
	}
	for _, field := range selector.NodeSelectorTerms[0].MatchFields {
		if field.Key == metav1.ObjectNameField && field.Operator == corev1.NodeSelectorOpIn && len(field.Values) == 1 {
			return field.Values
		}
	}
	return nil
}

func (f *Fleet) readSlices(ctx context.Context, reader client.Reader, s Scope) error {
	wanted := fields.Set{resourceapi.ResourceSliceSelectorDriver: s.Driver}
	if len(s.Nodes) == 1 {
		wanted[resourceapi.ResourceSliceSelectorNodeName] = s.Nodes[0]
	}
	compactor := devices.NewCompactor()
	err := Each(ctx, reader, &resourceapi.ResourceSliceList{}, func(object runtime.Object) {
		compactor.Compact(object.(*resourceapi.ResourceSlice))
		slice := *object.(*resourceapi.ResourceSlice) // a copy, so that its page can be freed
		slice.ManagedFields, slice.OwnerReferences = nil, nil
		f.Slices = append(f.Slices, &slice)
	}, client.MatchingFieldsSelector{Selector: wanted.AsSelector()})
	switch {
	case apierrors.IsForbidden(err):
		f.SlicesHidden = true
		f.Unseen = append(f.Unseen, "you may not list ResourceSlices, so only GPUs that claims hold are shown, without products and health: "+AskFor)
		return nil
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return errors.New("list the ResourceSlices: the API server has no resource.k8s.io/v1: it takes Kubernetes 1.34 or newer, with dynamic resource allocation switched on")
	case err != nil:
		return fmt.Errorf("list the ResourceSlices of driver %s: %w", s.Driver, err)
	}
	return nil
}

func (f *Fleet) readRules(ctx context.Context, reader client.Reader) error {
	err := Each(ctx, reader, &resourceapi.DeviceTaintRuleList{}, func(object runtime.Object) {
		f.Rules = append(f.Rules, *object.(*resourceapi.DeviceTaintRule))
	})
	switch {
	case apierrors.IsForbidden(err):
		f.Unseen = append(f.Unseen, "you may not list DeviceTaintRules, so their taints are not shown: "+AskFor)
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err): // an older API server has none
	case err != nil:
		return fmt.Errorf("list the DeviceTaintRules: %w", err)
	}
	return nil
}

func (f *Fleet) readClaims(ctx context.Context, reader client.Reader, s Scope) error {
	read := func(namespace string) error {
		return Each(ctx, reader, &resourceapi.ResourceClaimList{}, func(object runtime.Object) {
			f.Holdings = append(f.Holdings, HoldingsOf(object.(*resourceapi.ResourceClaim), s.Driver)...)
		}, client.InNamespace(namespace))
	}
	if s.OneNamespace {
		switch err := read(s.Namespace); {
		case apierrors.IsForbidden(err):
			return fmt.Errorf("list the ResourceClaims of namespace %s: %w: ask for the ClusterRole view there, or %s", s.Namespace, err, AskFor)
		case err != nil:
			return fmt.Errorf("list the ResourceClaims: %w", err)
		}
		return nil
	}
	err := read(metav1.NamespaceAll)
	if err == nil {
		return nil
	}
	if apierrors.IsForbidden(err) {
		f.OfNamespace = s.Namespace
		err = read(s.Namespace)
	}
	switch {
	case apierrors.IsForbidden(err) && f.SlicesHidden:
		return ErrHidden
	case apierrors.IsForbidden(err) && s.Namespace == "":
		f.Unseen = append(f.Unseen, NotAllClaims+", so the claims with its devices are unknown")
	case apierrors.IsForbidden(err):
		f.Unseen = append(f.Unseen, fmt.Sprintf("you may list no ResourceClaims, neither of all namespaces nor of %s, so GPUs are shown without their pods and without what is free: %s", s.Namespace, AskFor))
	case err != nil:
		return fmt.Errorf("list the ResourceClaims: %w", err)
	default:
		f.Unseen = append(f.Unseen, fmt.Sprintf("%s, so only claims of %s are shown, and what is free is unknown: %s", NotAllClaims, s.Namespace, AskFor))
	}
	return nil
}

// Each lists objects page by page into new lists of the given kind. While a page is handled, the next
// one is read.
func Each(ctx context.Context, reader client.Reader, kind client.ObjectList, each func(runtime.Object), options ...client.ListOption) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		list := kind.DeepCopyObject().(client.ObjectList)
		err := reader.List(ctx, list, append([]client.ListOption{client.Limit(o.Limit), client.Continue(o.Continue)}, options...)...)
		return list, err
	})
	pages.PageSize, pages.PageBufferSize = pageSize, 1
	return pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		each(object)
		return nil
	})
}
