package main

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/fleet"
	"github.com/mica-gpu/mica/pkg/kubectl/explain"
	"github.com/mica-gpu/mica/pkg/scaleout"
	reasons "github.com/mica-gpu/mica/pkg/scaleout/explain"
)

func (x explainer) claim(ctx context.Context, name types.NamespacedName) (result, error) {
	c, notes, err := x.explainClaim(ctx, name)
	return result{value: c, table: c.Write, notes: notes}, err
}

// explainClaim returns the devices of a claim, or explains the pod that waits with it. The notes say what the user may
// not see.
func (x explainer) explainClaim(ctx context.Context, name types.NamespacedName) (explain.Claim, []string, error) {
	var claim resourceapi.ResourceClaim
	switch err := x.reader.Get(ctx, name, &claim); {
	case apierrors.IsNotFound(err):
		return explain.Claim{}, nil, missing(ctx, x.reader, claimKind, "claim", name, "see kubectl get resourceclaims -n "+name.Namespace)
	case err != nil:
		return explain.Claim{}, nil, fmt.Errorf("read claim %s: %w", name, err)
	}
	var notes []string
	var all corev1.PodList
	switch err := x.reader.List(ctx, &all, client.InNamespace(name.Namespace)); {
	case apierrors.IsForbidden(err):
		notes = append(notes, fmt.Sprintf("you may not list the pods of namespace %s, so only those are shown that the claim is reserved for", name.Namespace))
	case err != nil:
		return explain.Claim{}, nil, fmt.Errorf("list the pods of namespace %s: %w", name.Namespace, err)
	}
	pods := explain.ConsumersOf(&claim, all.Items)
	if claim.Status.Allocation != nil {
		seen, err := fleet.ReadClaim(ctx, x.reader, &claim)
		return explain.AllocatedClaim(&claim, pods, seen.Devices()), append(notes, seen.Unseen...), err
	}
	if why := explain.Misplaced(pods); why != "" {
		return explain.Claim{}, notes, fmt.Errorf("claim %s waits for nothing: %s", name, why)
	}
	waiting, waits := explain.Pending(pods)
	if !waits {
		e, err := x.explainUnused(ctx, &claim)
		return explain.WaitingClaim(&claim, nil, e), notes, err
	}
	e, more, err := x.explainOrRecall(ctx, types.NamespacedName{Namespace: name.Namespace, Name: waiting})
	return explain.WaitingClaim(&claim, pods, e), append(notes, more...), err
}

// explainUnused explains a claim that no pod uses.
func (x explainer) explainUnused(ctx context.Context, claim *resourceapi.ResourceClaim) (reasons.Explanation, error) {
	v, err := x.look(ctx)
	if err != nil {
		return reasons.Explanation{}, err
	}
	pod := explain.PodFor(claim)
	s := v.Snapshot
	s.Pending = append(slices.Clip(s.Pending), pod)
	e, _, err := reasons.Pod(ctx, scaleout.NewPlanner(s), client.ObjectKeyFromObject(pod))
	if err != nil {
		return reasons.Explanation{}, fmt.Errorf("plan for claim %s: %w", client.ObjectKeyFromObject(claim), err)
	}
	return e, nil
}
