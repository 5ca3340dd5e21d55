package supply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// mostGangs limits the counting of replicas of several kinds of pods: they are placed pod by pod.
const mostGangs = 128

const (
	// mostReasons is the number of groups in a sentence, longestReason the bytes for each.
	mostReasons   = 4
	longestReason = 240
)

// Count counts the room for each sample, as if it were the only one.
func Count(ctx context.Context, samples []Sample) []Supply {
	all := make([]Supply, len(samples))
	for i, sample := range samples {
		if sample.Problem != "" {
			all[i].Problem = sample.Problem
			continue
		}
		s, err := sample.count(ctx)
		if err != nil {
			s = Supply{Problem: uncounted(err)}
		}
		all[i] = s
	}
	return all
}

// uncounted is the problem of a count that failed.
func uncounted(err error) string {
	if !errors.Is(err, fit.ErrSpent) {
		return err.Error()
	}
	return "cannot count the room for more pods: there are too many samples, " +
		"or their claims have too many combinations of devices; ask for several devices by the count of one request rather than by several requests"
}

func (s Sample) count(ctx context.Context) (Supply, error) {
	if len(s.Members) > 1 {
		return s.gangs(ctx)
	}
	pods := s.Members[0].Pods
	supply, err := s.pods(ctx, pods)
	if err != nil {
		return supply, err
	}
	supply = bound(supply, pods)
	return explained(ctx, supply, pods).of(s.Members[0].Count), nil
}

// pods counts the room for pods that are alike.
func (s Sample) pods(ctx context.Context, pods Pods) (Supply, error) {
	if supply, together, err := pods.Together(ctx); together || err != nil {
		return supply, err
	}
	room, err := pods.Room(ctx)
	if err != nil {
		return Supply{}, err
	}
	if !room.Entangled {
		supply := Supply{Why: room.Aborts}
		for _, hosts := range room.Hosts {
			supply.Add(hosts.At, hosts.Number*hosts.Pods)
		}
		return supply, nil
	}
	supply, err := s.Trial().Put(ctx, pods, Max)
	if err == nil && supply.Why == "" && slices.ContainsFunc(pods.Groups(ctx), func(g Group) bool { return g.Growth > 0 }) {
		supply.Why = "no further node helps: what the pods need has an end elsewhere, such as devices that nodes share, or the one node on which pods have to be with each other"
	}
	return supply, err
}

// bound drops pods that exceed the sharers of the claim, the furthest first.
func bound(s Supply, pods Pods) Supply {
	claim, most := pods.Sharers()
	if claim == "" {
		return s
	}
	if s.Total() > most {
		s.Why = fmt.Sprintf("no more than %d pods may share claim %s", resourceapi.ResourceClaimReservedForMaxSize, claim)
	}
	s.Free = min(s.Free, most)
	s.Coming = min(s.Coming, most-s.Free)
	s.Provisionable = min(s.Provisionable, most-s.Free-s.Coming)
	return s
}

// gangs counts the room for replicas of several kinds of pods. A replica is as far away as the furthest of its pods.
func (s Sample) gangs(ctx context.Context) (Supply, error) {
	for _, member := range s.Members {
		if claim, _ := member.Pods.Sharers(); claim != "" {
			return Supply{}, fmt.Errorf("the pods of a replica are not alike and share claim %s by its name: name a ResourceClaimTemplate in its place", claim)
		}
	}
	var supply Supply
	for trial := s.Trial(); supply.Total() < mostGangs; {
		furthest := Live
		for _, member := range s.Members {
			put, err := trial.Put(ctx, member.Pods, member.Count)
			if err != nil {
				return Supply{}, err
			}
			if put.Total() < member.Count {
				supply.Why = put.Why
				return explained(ctx, supply, member.Pods), nil
			}
			for at := range New + 1 {
				if *put.number(at) > 0 {
					furthest = max(furthest, at)
				}
			}
		}
		supply.Add(furthest, 1)
	}
	supply.Why = fmt.Sprintf("room is counted up to %d replicas of several pods", mostGangs)
	return supply, nil
}

// explained adds what ends the room, unless Why says so already: first the groups that may grow, then those that may
// not grow, then those in which the pods do not fit.
func explained(ctx context.Context, s Supply, pods Pods) Supply {
	if s.Why != "" {
		return s
	}
	var grow, hold, unfit []string
	for _, g := range pods.Groups(ctx) {
		why := g.Why
		if g.Err != nil {
			why += uncounted(g.Err)
		}
		switch {
		case g.Growth > 0 && g.Fits:
			grow = append(grow, why)
		case g.Fits:
			hold = append(hold, why)
		default:
			unfit = append(unfit, why)
		}
	}
	s.Why = sentence(slices.Concat(grow, hold, unfit))
	return s
}

// sentence joins the first reasons.
func sentence(reasons []string) string {
	if len(reasons) == 0 {
		return "there are no node groups: create a GPUNodeGroup"
	}
	named := reasons[:min(len(reasons), mostReasons)]
	for i, reason := range named {
		named[i] = excerpt.Of(reason, longestReason)
	}
	text := strings.Join(named, "; ")
	switch more := len(reasons) - len(named); more {
	case 0:
		return text
	case 1:
		return text + "; and 1 other group"
	default:
		return fmt.Sprintf("%s; and %d other groups", text, more)
	}
}
