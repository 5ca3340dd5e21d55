package main

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/kubectl/inventory"
)

// pageSize is how many objects are asked for at once: slices have up to 128 devices each.
const pageSize = 250

// fleetReader reads what there is to say of GPUs, page by page, and as much as its user may see.
type fleetReader struct {
	reader client.Reader
	// sliceAnswers gives a page of ResourceSlices as it was sent, which is faster; nil: the reader is
	// asked for them.
	sliceAnswers func(context.Context, metav1.ListOptions) ([]byte, error)
	driver       string
	// namespace is the one whose claims are read if those of all may not be.
	namespace string
	// only is the namespace whose claims are read in any case, empty: all.
	only string
	// nodes are the only ones to read the slices of; none: all.
	nodes []string
}

// Sentences about what may not be seen.
const (
	notAllClaims = "you may not list the ResourceClaims of all namespaces"
	askFor       = "ask for the ClusterRole mica-view-gpus of Mica's chart (value viewGPUs.subjects)"
)

func (r fleetReader) read(ctx context.Context) (inventory.Seen, error) {
	var seen inventory.Seen
	if err := r.readSlices(ctx, &seen); err != nil {
		return seen, err
	}
	if err := r.readRules(ctx, &seen); err != nil {
		return seen, err
	}
	return seen, r.readClaims(ctx, &seen)
}

func (r fleetReader) readSlices(ctx context.Context, seen *inventory.Seen) error {
	err := eachPage(ctx, r.slicePages(), func(object runtime.Object) {
		slice := *object.(*resourceapi.ResourceSlice)
		slice.ManagedFields, slice.OwnerReferences = nil, nil
		seen.Slices = append(seen.Slices, &slice)
	})
	switch {
	case apierrors.IsForbidden(err):
		seen.SlicesHidden = true
		seen.NotSeen = append(seen.NotSeen, "you may not list ResourceSlices, so only GPUs are shown that claims hold, without products and health: "+askFor)
		return nil
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return fmt.Errorf("list the ResourceSlices: the API server has no resource.k8s.io/v1: it takes Kubernetes 1.34 or newer, with dynamic resource allocation switched on")
	case err != nil:
		return fmt.Errorf("list the ResourceSlices of driver %s: %w", r.driver, err)
	}
	return nil
}

// slicePages gives compact slices.
func (r fleetReader) slicePages() pager.ListPageFunc {
	if r.sliceAnswers == nil {
		compactor := devices.NewCompactor()
		return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := &resourceapi.ResourceSliceList{}
			err := r.reader.List(ctx, list, client.Limit(o.Limit), client.Continue(o.Continue), client.MatchingFieldsSelector{Selector: r.sliceFields()})
			for i := range list.Items {
				compactor.Compact(&list.Items[i])
			}
			return list, err
		}
	}
	decoder := devices.NewDecoder()
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		o.FieldSelector = r.sliceFields().String()
		answer, err := r.sliceAnswers(ctx, o)
		if err != nil {
			return nil, err
		}
		return decoder.List(answer)
	}
}

// sliceFields leave out slices that the API server need not send.
func (r fleetReader) sliceFields() fields.Selector {
	selector := fields.Set{resourceapi.ResourceSliceSelectorDriver: r.driver}
	if len(r.nodes) == 1 {
		selector[resourceapi.ResourceSliceSelectorNodeName] = r.nodes[0]
	}
	return selector.AsSelector()
}

func (r fleetReader) readRules(ctx context.Context, seen *inventory.Seen) error {
	err := eachOf(ctx, r.reader, func() client.ObjectList { return &resourceapi.DeviceTaintRuleList{} }, func(object runtime.Object) {
		seen.Rules = append(seen.Rules, *object.(*resourceapi.DeviceTaintRule))
	})
	switch {
	case apierrors.IsForbidden(err):
		seen.RulesHidden = true
		seen.NotSeen = append(seen.NotSeen, "you may not list DeviceTaintRules, so taints that they put on devices are not shown: "+askFor)
		return nil
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		seen.RulesHidden = true
		return nil // an older API server has none, and so no taints by them
	case err != nil:
		return fmt.Errorf("list the DeviceTaintRules: %w", err)
	}
	return nil
}

// readClaims reads those of all namespaces, or if that is not allowed, of its user's.
func (r fleetReader) readClaims(ctx context.Context, seen *inventory.Seen) error {
	add := func(object runtime.Object) {
		seen.Holdings = append(seen.Holdings, inventory.HoldingsOf(object.(*resourceapi.ResourceClaim), r.driver)...)
	}
	list := func() client.ObjectList { return &resourceapi.ResourceClaimList{} }
	err := eachOf(ctx, r.reader, list, add, client.InNamespace(r.only))
	if apierrors.IsForbidden(err) && r.only == "" {
		seen.OfNamespace = r.namespace
		seen.NotSeen = append(seen.NotSeen, fmt.Sprintf("%s, so what other namespaces than %s have is not shown, nor what is free: %s", notAllClaims, r.namespace, askFor))
		err = eachOf(ctx, r.reader, list, add, client.InNamespace(r.namespace))
	}
	switch {
	case apierrors.IsForbidden(err) && seen.SlicesHidden && r.only == "":
		return errBlind
	case apierrors.IsForbidden(err) && r.only != "":
		return fmt.Errorf("list the ResourceClaims of namespace %s: %w: ask for the ClusterRole view there, or %s", r.only, err, askFor)
	case apierrors.IsForbidden(err):
		seen.ClaimsHidden = true
		seen.NotSeen[len(seen.NotSeen)-1] = fmt.Sprintf("you may list no ResourceClaims, neither of all namespaces nor of %s, so GPUs are shown without who has them, and without what is free: %s", r.namespace, askFor)
	case err != nil:
		return fmt.Errorf("list the ResourceClaims: %w", err)
	}
	return nil
}

// eachOf lists page by page, from one state of the cluster where the API server still has it.
func eachOf(ctx context.Context, reader client.Reader, empty func() client.ObjectList, each func(runtime.Object), options ...client.ListOption) error {
	return eachPage(ctx, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		list := empty()
		err := reader.List(ctx, list, append([]client.ListOption{client.Limit(o.Limit), client.Continue(o.Continue)}, options...)...)
		return list, err
	}, each)
}

func eachPage(ctx context.Context, page pager.ListPageFunc, each func(runtime.Object)) error {
	pages := pager.New(page)
	pages.PageSize, pages.PageBufferSize = pageSize, 1
	return pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		each(object)
		return nil
	})
}
