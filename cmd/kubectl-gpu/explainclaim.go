package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/kubectl/allocation"
	"github.com/mica-gpu/mica/pkg/kubectl/inventory"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/explain"
)

// explainClaim says which devices a claim has, or plans as the controller does for the pod that waits
// with it. The notes say what was not seen.
func explainClaim(ctx context.Context, reader client.Reader, name types.NamespacedName, o options, now time.Time) (allocation.Claim, []string, error) {
	var claim resourceapi.ResourceClaim
	switch err := reader.Get(ctx, name, &claim); {
	case apierrors.IsNotFound(err):
		return allocation.Claim{}, nil, missing(ctx, reader, claimKind, "claim", name, "see kubectl get resourceclaims -n "+name.Namespace)
	case err != nil:
		return allocation.Claim{}, nil, fmt.Errorf("read claim %s: %w", name, err)
	}
	var notes []string
	var all corev1.PodList
	switch err := reader.List(ctx, &all, client.InNamespace(name.Namespace)); {
	case apierrors.IsForbidden(err):
		notes = append(notes, fmt.Sprintf("you may not list the pods of namespace %s, so those are shown only for which the claim is reserved", name.Namespace))
	case err != nil:
		return allocation.Claim{}, nil, fmt.Errorf("list the pods of namespace %s: %w", name.Namespace, err)
	}
	pods := allocation.PodsOf(&claim, all.Items)
	if claim.Status.Allocation != nil {
		given, unseen, err := givenTo(ctx, reader, &claim)
		return allocation.Of(&claim, pods, given), append(notes, unseen...), err
	}
	if why := allocation.Misplaced(pods); why != "" {
		return allocation.Claim{}, notes, fmt.Errorf("claim %s waits for nothing: %s", name, why)
	}
	waiting, waits := allocation.Waiting(pods)
	if !waits {
		e, err := explainAlone(ctx, reader, &claim, o, now)
		return allocation.Unallocated(&claim, nil, e), notes, err
	}
	e, said, err := explainOrTold(ctx, reader, types.NamespacedName{Namespace: name.Namespace, Name: waiting}, o, now)
	return allocation.Unallocated(&claim, pods, e), append(notes, said...), err
}

// explainAlone judges a claim that no pod uses.
func explainAlone(ctx context.Context, reader client.Reader, claim *resourceapi.ResourceClaim, o options, now time.Time) (explain.Explanation, error) {
	v, err := look(ctx, reader, o, now)
	if err != nil {
		return explain.Explanation{}, err
	}
	pod := allocation.Alone(claim)
	v.Pending = append(v.Pending, pod)
	e, _, err := explain.Pod(ctx, scaleout.NewPlanner(v.Snapshot), client.ObjectKeyFromObject(pod))
	if err != nil {
		return explain.Explanation{}, fmt.Errorf("plan for claim %s: %w", client.ObjectKeyFromObject(claim), err)
	}
	return e, nil
}

// givenTo reads the pools in which a claim has devices. Who may not is told so.
func givenTo(ctx context.Context, reader client.Reader, claim *resourceapi.ResourceClaim) ([]inventory.Given, []string, error) {
	var seen inventory.Seen
	var read []string
	for _, result := range claim.Status.Allocation.Devices.Results {
		if slices.Contains(read, result.Driver) {
			continue
		}
		read = append(read, result.Driver)
		r := fleetReader{reader: reader, driver: result.Driver, nodes: nodesOfClaim(claim)}
		if err := r.readSlices(ctx, &seen); err != nil {
			return nil, nil, err
		}
		seen.Holdings = append(seen.Holdings, inventory.HoldingsOf(claim, result.Driver)...)
	}
	if err := (fleetReader{reader: reader}).readRules(ctx, &seen); err != nil {
		return nil, nil, err
	}
	if seen.SlicesHidden {
		return inventory.GivenOf(seen), []string{"you may not list ResourceSlices, so products and health of the devices are not shown: " + askFor}, nil
	}
	return inventory.GivenOf(seen), seen.NotSeen, nil
}

// nodesOfClaim is the node on which the claim's devices are, none where they are not of one node.
func nodesOfClaim(claim *resourceapi.ResourceClaim) []string {
	selector := claim.Status.Allocation.NodeSelector
	if selector == nil || len(selector.NodeSelectorTerms) != 1 {
		return nil
	}
	for _, field := range selector.NodeSelectorTerms[0].MatchFields {
		if field.Key == "metadata.name" && field.Operator == corev1.NodeSelectorOpIn && len(field.Values) == 1 {
			return field.Values
		}
	}
	return nil
}
