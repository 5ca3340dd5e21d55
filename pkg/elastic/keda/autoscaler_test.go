package keda

import (
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// syncPeriod is that of the HorizontalPodAutoscaler (kube-controller-manager's
// --horizontal-pod-autoscaler-sync-period).
const syncPeriod = 15 * time.Second

// upTolerance is how far above its target a metric may be before a replica is added
// (--horizontal-pod-autoscaler-tolerance).
const upTolerance = 0.1

// autoscaler decides as the HorizontalPodAutoscaler of Kubernetes 1.37 does for external metrics
// with an AverageValue: pkg/controller/podautoscaler, replica_calculator.go
// (GetExternalPerPodMetricReplicas, Tolerances.isWithin) and horizontal.go
// (computeReplicasForMetrics, stabilizeRecommendationWithBehaviors,
// convertDesiredReplicasWithBehaviorRate).
type autoscaler struct {
	min, max int32
	behavior autoscalingv2.HorizontalPodAutoscalerBehavior

	recommended []change // the result of each sync
	up, down    []change // changes of replicas
}

// change is a number at a time.
type change struct {
	at time.Time
	by int32
}

// reading is a metric: a total over the replicas, and its target for one.
type reading struct{ total, target float64 }

// look returns the new number of replicas.
func (a *autoscaler) look(now time.Time, current int32, readings []reading) int32 {
	var wanted int32
	for _, r := range readings {
		wanted = max(wanted, a.proposed(current, r))
	}
	a.forget(now)
	next := a.limited(now, current, a.stabilized(now, current, max(wanted, a.min)))
	switch {
	case next > current:
		a.up = append(a.up, change{now, next - current})
	case next < current:
		a.down = append(a.down, change{now, current - next})
	}
	return next
}

// forget drops changes before all windows and periods.
func (a *autoscaler) forget(now time.Time) {
	longest := max(window(a.behavior.ScaleUp), window(a.behavior.ScaleDown))
	for _, p := range slices.Concat(a.behavior.ScaleUp.Policies, a.behavior.ScaleDown.Policies) {
		longest = max(longest, time.Duration(p.PeriodSeconds)*time.Second)
	}
	before := now.Add(-longest)
	for _, of := range []*[]change{&a.recommended, &a.up, &a.down} {
		*of = slices.DeleteFunc(*of, func(c change) bool { return c.at.Before(before) })
	}
}

// proposed is the number of replicas for one metric: the current one within the tolerances.
func (a *autoscaler) proposed(current int32, r reading) int32 {
	downTolerance := upTolerance
	if t := a.behavior.ScaleDown.Tolerance; t != nil {
		downTolerance = t.AsApproximateFloat64()
	}
	ratio := r.total / (r.target * float64(current))
	if 1-downTolerance <= ratio && ratio <= 1+upTolerance {
		return current
	}
	return int32(math.Ceil(r.total / r.target))
}

// stabilized takes the lowest recommendation within the window for scaling up, and the highest within that for
// scaling down.
func (a *autoscaler) stabilized(now time.Time, current, wanted int32) int32 {
	least, most := wanted, wanted
	for _, r := range a.recommended {
		if r.at.After(now.Add(-window(a.behavior.ScaleUp))) {
			least = min(least, r.by)
		}
		if r.at.After(now.Add(-window(a.behavior.ScaleDown))) {
			most = max(most, r.by)
		}
	}
	a.recommended = append(a.recommended, change{now, wanted})
	return min(max(current, least), most)
}

func window(rules *autoscalingv2.HPAScalingRules) time.Duration {
	return time.Duration(*rules.StabilizationWindowSeconds) * time.Second
}

// limited applies the policies, which count from the replicas at the beginning of their periods.
func (a *autoscaler) limited(now time.Time, current, wanted int32) int32 {
	began := func(p autoscalingv2.HPAScalingPolicy) int32 {
		since := now.Add(-time.Duration(p.PeriodSeconds) * time.Second)
		return current - sum(a.up, since) + sum(a.down, since)
	}
	switch {
	case wanted > current: // SelectPolicy Max
		limit := int32(math.MinInt32)
		for _, p := range a.behavior.ScaleUp.Policies {
			to := began(p) + p.Value
			if p.Type == autoscalingv2.PercentScalingPolicy {
				to = int32(math.Ceil(float64(began(p)) * (1 + float64(p.Value)/100)))
			}
			limit = max(limit, to)
		}
		return min(wanted, a.max, max(limit, current))
	case wanted < current: // SelectPolicy Min
		limit := int32(math.MinInt32)
		for _, p := range a.behavior.ScaleDown.Policies {
			to := began(p) - p.Value
			if p.Type == autoscalingv2.PercentScalingPolicy {
				to = int32(float64(began(p)) * (1 - float64(p.Value)/100))
			}
			limit = max(limit, to)
		}
		return max(wanted, a.min, min(limit, current))
	}
	return wanted
}

func sum(changes []change, since time.Time) int32 {
	var n int32
	for _, c := range changes {
		if c.at.After(since) {
			n += c.by
		}
	}
	return n
}
