package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// endpoints knows the addresses behind each Service with a selector.
type endpoints struct {
	slices discoverylisters.EndpointSliceLister
}

// watchEndpoints returns once the present ones are known, and follows them until the context
// ends.
func watchEndpoints(ctx context.Context, client kubernetes.Interface) (endpoints, error) {
	factory := informers.NewSharedInformerFactory(client, 0)
	slices := factory.Discovery().V1().EndpointSlices()
	synced := slices.Informer().HasSynced
	factory.Start(ctx.Done())
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if !cache.WaitForCacheSync(wait.Done(), synced) {
		return endpoints{}, fmt.Errorf("list the cluster's EndpointSlices: %w: the service account needs list and watch of them",
			errors.Join(context.Cause(wait), errors.New("they did not come within a minute")))
	}
	return endpoints{slices: slices.Lister()}, nil
}

// find gives the ready addresses of a Service, which is known as soon as it has an
// EndpointSlice, with addresses or without.
func (e endpoints) find(namespace, service string) ([]netip.Addr, bool) {
	selector := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service})
	found, err := e.slices.EndpointSlices(namespace).List(selector)
	if err != nil || len(found) == 0 {
		return nil, false
	}
	var addresses []netip.Addr
	for _, slice := range found {
		for _, endpoint := range slice.Endpoints {
			if !ptr.Deref(endpoint.Conditions.Ready, true) {
				continue
			}
			for _, text := range endpoint.Addresses {
				if address, err := netip.ParseAddr(text); err == nil {
					addresses = append(addresses, address)
				}
			}
		}
	}
	return addresses, true
}
